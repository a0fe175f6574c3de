"""Quantized linear layers, a file per method.

base               the interface, and the method of layers that are not quantized   (read first)
registry           which method reads a checkpoint's quantization_config
stored             what the methods share whose weights are quantized in the checkpoint
int8               W8A8: weights rounded to 8 bits when loaded, inputs row by row
int4               W4A16: weights rounded to 4 bits in groups when loaded
"""
