"""Checkpoints in GGUF files (llama.cpp's format).

types      tensor types: names and block sizes
reader     a file's metadata and the places of its tensors; torch-free   (read first)
metadata   typed access to a file's fields
architectures   llama.cpp's: their fields, and how their tensors' names differ
config     translates metadata to the fields of config.json
names      maps tensors, or rows of them, to the names of transformers' format
weights    reads tensors, for the parts of a model
files      which names are those of a checkpoint
projector  files beside a model that are none, and the model in a directory
tokenizer, pre_tokenizers   its tokenizer and chat templates, as the CPU tiers read them
"""
