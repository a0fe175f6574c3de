"""What computes a worker's steps: keeps the state of the batch and runs the model over it.

model_runner       one step: inputs, forward pass, head, sampler   (read first)
input_batch        what the worker remembers of each sequence, in arrays
forward            how hidden states and logits are computed, on whatever device
dummy_batches      steps made up for profiling and warming up; self_test: are a row's bits independent of its step?
unsound_part       where numbers of a model cease to be numbers, if they do as it warms up
"""
