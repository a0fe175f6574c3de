"""Quantized linear layers, a file per method.

base               the interface, and the method of layers that are not quantized   (read first)
int8               W8A8: weights of 8 bits, inputs rounded row by row
"""
