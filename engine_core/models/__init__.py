"""Models: a file per family, which says how its layers are put together.

base               a decoder: embedding, layers, norm, head   (read first)
llama              the family that others resemble, whose files say how they differ from it
registry           which class runs which architecture: a new family is a new file, and a line here
architecture       what the engine must know of a decoder, read from a checkpoint's configuration
roofline           the shortest time that a machine could take for a step
"""
