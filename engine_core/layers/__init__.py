"""The parts that decoder layers are made of.

part               what every part is: something with weights, which it loads   (read first)
linear, embedding, norm, attention     the parts of most models
mla                the part that is attention over latents
fused_moe          the part that is a router and its experts
part_factory       makes the parts of one model, and loads them in order; shares: what a rank has of each
rotary             rotary position embedding, with its extensions to longer contexts
"""
