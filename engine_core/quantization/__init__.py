"""Quantized linear layers, a file per method.

base               the interface, and the method of layers that are not quantized   (read first)
int8               W8A8: weights of 8 bits, inputs rounded row by row
stored             what methods share that read quantized checkpoints: of linear layers, and (stored_experts) of experts
mxfp4              the experts of gpt-oss
"""
