"""Checkpoints in GGUF files (llama.cpp's format).

types      the types of tensors: their names and blocks
reader     a file's metadata and the places of its tensors; torch-free   (read first)
files      which files are a checkpoint
tokenizer, pre_tokenizers   its tokenizer and chat templates, as the CPU tiers read them
"""
