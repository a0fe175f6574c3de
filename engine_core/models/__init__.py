"""Models: a file per family, which says how its layers are put together.

language_model     a language model as workers see it; fallback: through transformers' own modules
causal_lm          a decoder: embedding, layers, norm, head   (read first)
blocks             the blocks that layers are made of: attention, feed-forward, and where their norms are
llama              the family that others resemble, whose files say how they differ from it
mixture            what families with experts share; mixtral is the plainest
latent             what families with latent attention share; deepseek_v3 is the first
registry           which class runs which architecture: a new family is a new file, and a line here (README.md)
model_config       what the engine must know of a decoder, read from a checkpoint's configuration
roofline           the shortest time that a machine could take for a step
"""
