"""Quantized linear layers, a file per method.

base               the interface, and the method of layers that are not quantized   (read first)
stored             what methods share that read quantized checkpoints: of linear layers, and (stored_experts) of experts
row_padding        zeros after some outputs of a layer that is quantized
selector           which method a model has: an option's, or its checkpoint's
registry           quantization_config of a checkpoint: a method is one file and a line there
schemes            methods that give each layer a scheme, or none
config_fields      fields of quantization_config, checked; packing: codes out of packed words
awq                AWQ
gptq               GPTQ, and AutoRound where it packs alike
compressed_tensors compressed-tensors; compressed_schemes: how it stores single layers
fp8                FP8: scales of tensors, outputs or blocks
bitsandbytes       NF4, and LLM.int8()
mxfp4              the experts of gpt-oss
gguf               GGUF: each weight in a type of its own; gguf_blocks: the types
int8               W8A8: weights rounded to 8 bits when loaded, inputs row by row
int4               W4A16: weights rounded to 4 bits in groups when loaded
"""
