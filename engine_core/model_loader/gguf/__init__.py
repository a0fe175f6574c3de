"""Checkpoints in GGUF files (llama.cpp's format).

types      tensor types: names and block sizes
reader     a file's metadata and the places of its tensors; torch-free   (read first)
metadata   typed access to a file's fields
config     translates metadata to the fields of config.json
names      maps tensors, or rows of them, to the names of transformers' format
weights    reads tensors, for the parts of a model
files      which files are a checkpoint
tokenizer, pre_tokenizers   its tokenizer and chat templates, as the CPU tiers read them
"""
