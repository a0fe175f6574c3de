"""Models: a file per family, which assembles its layers.

language_model     a language model as workers see it; fallback: through transformers' own modules
causal_lm          a decoder: embedding, layers, norm, head   (read first)
llama              the layer that most families have, and others resemble
blocks             the blocks of most layers: multi-head attention, and a gated feed-forward block
mixtral            the plainest family with experts; deepseek_v3: the first with latent attention
registry           which class runs which architecture: a new family is a new file, and a line here (README.md)
model_config       a decoder's shape and options, read from a checkpoint's configuration
roofline           the shortest time that a machine could take for a step
"""
