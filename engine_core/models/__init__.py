"""Models: a file per family, which says how its layers are put together.

language_model     a language model as workers see it; fallback: through transformers' own modules
causal_lm          a decoder: embedding, layers, norm, head   (read first)
llama              the layer that most families have, and others resemble
blocks             what most layers are made of: attention over heads, and a feed-forward block with a gate
mixtral            the plainest family with experts; deepseek_v3: the first with attention over latents
registry           which class runs which architecture: a new family is a new file, and a line here (README.md)
model_config       what the engine must know of a decoder, read from a checkpoint's configuration
roofline           the shortest time that a machine could take for a step
"""
