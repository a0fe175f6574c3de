"""The worker: keeps the state of the batch and runs the model over it.

worker             one device with the model, its KV cache and the batch   (read first)
model_runner       one step: inputs, forward pass, head, sampler
input_batch        what the worker remembers of each sequence, in arrays
dummy_batches      steps made up for profiling and warming up; self_test: are a row's bits independent of its step?
fingerprint        the numerics digest: equal where the same request has the same bits
"""
