"""Quantized linear layers, a file per method.

base               the interface, and the method of unquantized layers   (read first)
stored             shared by methods that read quantized checkpoints: linear layers; stored_experts: experts
row_padding        zeros after some outputs of a quantized layer
selector           which method a model has: an option's, or its checkpoint's
registry           quantization_config of a checkpoint: a method is one file and a line there
schemes            methods that give each layer a scheme, or none
config_fields      fields of quantization_config, checked; packing: codes out of packed words
awq                AWQ
gptq               GPTQ
auto_round         AutoRound, where it packs as GPTQ or AWQ
compressed_tensors compressed-tensors; compressed_schemes: how it stores single layers
fp8                FP8: scales of tensors, outputs or blocks
bitsandbytes       NF4, and LLM.int8()
mxfp4              the experts of gpt-oss
gguf               GGUF: a type per weight; gguf_blocks: the types
int8               W8A8: weights rounded to 8 bits when loaded, inputs row by row
int4               W4A16: weights rounded to 4 bits in groups when loaded
"""
