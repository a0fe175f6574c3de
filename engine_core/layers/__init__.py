"""The parts that decoder layers are made of.

parts              QKVParallelLinear, RMSNorm, …, with their tensors   (read first)
part_factory       makes the parts of one model, and loads them in order; weights: what they take tensors from
fused_moe          the part that is a router and its experts
mla                the part that is attention over latents
rotary             rotary position embedding, with its extensions to longer contexts
"""
