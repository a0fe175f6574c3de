"""The operations that models compute with, and the backends that compute them.

base               the interface of a backend (read first)
native             on a CPU, by the native kernels (native_linear, native_experts, native_packing; for weights that stay
                   quantized: native_quantized, native_quantized_experts); torch: by plain torch
gpu                on NVIDIA GPUs (gpu_linear, gpu_experts, gpu_states)
lora               what adapters add to rows (native_lora, gpu_lora, torch_lora)
selector           which backend computes, and why
kernel_graph       all decoder layers of a model as one call, on a CPU
"""
