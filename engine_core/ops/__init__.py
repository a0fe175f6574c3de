"""The operations that models compute with, and the backends that compute them.

base               the interface of a backend (read first)
native             on a CPU, by the native kernels (native_linear, native_experts, native_packing, and native_quantized,
                   native_quantized_experts of weights that stay quantized); torch: by plain torch
gpu                on NVIDIA GPUs (gpu_linear, gpu_experts)
selector           which of them computes, and why
kernel_graph       all decoder layers of a model as one call, on a CPU
"""
