"""The layers that models are made of, and the backends that compute them.

parts              what models are written from: QKVParallelLinear, RMSNorm, …, with their tensors   (read first)
factory            makes the parts of one model, and loads them in order; weights: what they take tensors from
fused_moe          the part that is a router and its experts
mla                the part that is attention over latents
base               what parts compute with: the interface of a backend; activation: functions by name
native_backend     on a CPU, by the native kernels (native_moe, native_packing); torch_backend: by plain torch
selector           which of these two computes on a CPU, and why; how linear layers are quantized
gpu_backend        on NVIDIA GPUs; gpu_linear: its matrix products
rotary             rotary position embedding, with its extensions to longer contexts
graph              all layers of a model as one call, on a CPU
"""
