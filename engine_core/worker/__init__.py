"""One worker: loads its part of the model, keeps the batch's state and runs the model over it.

worker             one device with the model, its KV cache and the batch   (read first)
model_runner       one step: inputs, forward pass, head, sampler
input_batch        the worker's state of each sequence, in arrays; state_inputs: where its layers' states are and go
caches             the memory of KV caches and states
forward            hidden states and logits, on any device
join               how a worker connects to the other ranks; numerics: what decides its bits; grammars: its compiler
dummy_batches      steps for profiling and warming up; self_test: are a row's bits independent of its step?
step_times         what steps of few rows take, with drafts and without, and a drafter for its drafts
unsound_part       finds the part of a model that first puts out a NaN as it warms up
"""
