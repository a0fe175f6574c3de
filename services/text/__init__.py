"""Tokenizers and text, pure: no gRPC, no asyncio.

In reading order:

tokenizer_files, special_tokens, tokenizer         a checkpoint's tokenizer, loaded as transformers loads it
chat_templates, template_sandbox                   messages → prompt text, within bounds of time and size
pieces, incremental_decoder, stop_strings          ids → text one by one; stop strings in growing text
choice_decoder                                     all of that for one choice: ids in, deltas out
"""
