"""Checkpoints in GGUF files (llama.cpp's format).

types      the types of tensors: their names and blocks
reader     a file's metadata and the places of its tensors; torch-free   (read first)
metadata   typed access to a file's fields
config     what they say of the model, as config.json would say it
names      which tensor, or which rows of one, is each tensor of a checkpoint in transformers' format
weights    reads them, for the parts of a model
files      which files are a checkpoint
tokenizer, pre_tokenizers   its tokenizer and chat templates, as the CPU tiers read them
"""
