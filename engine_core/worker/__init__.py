"""A worker's steps: keeps the batch's state and runs the model over it.

model_runner       one step: inputs, forward pass, head, sampler   (read first)
input_batch        the worker's state of each sequence, in arrays
forward            hidden states and logits, on any device
dummy_batches      steps for profiling and warming up; self_test: are a row's bits independent of its step?
unsound_part       finds the part of a model that first puts out a NaN as it warms up
"""
