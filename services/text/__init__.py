"""Text: tokenizer loading and fingerprint, chat templates, incremental decoding, stop strings; all pure."""
