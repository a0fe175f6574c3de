"""Quantized linear layers, a file per method.

base               the interface, and the method of layers that are not quantized   (read first)
registry           which method reads a checkpoint's quantization_config
stored             what methods share that read quantized checkpoints: of linear layers, and (stored_experts) of experts
mxfp4              the experts of gpt-oss
int8               W8A8: weights rounded to 8 bits when loaded, inputs row by row
int4               W4A16: weights rounded to 4 bits in groups when loaded
"""
