"""Quantized linear layers, a file per method; int8 is W8A8 with weights of 8 bits and inputs rounded row by row."""
