"""The parts of decoder layers.

part               the base of parts: modules that load their weights   (read first)
linear, embedding, norm, attention     the parts of most models
mla                attention over latents
fused_moe          a router and its experts
states             the parts of layers that keep a state: short convolution, recurrence, gated norm
part_factory       makes the parts of one model, in loading order; shares: the share of each that a rank has
rotary             rotary position embedding, and its extensions to longer contexts
"""
