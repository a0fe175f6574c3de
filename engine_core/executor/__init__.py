"""Executors: start the workers and pass plans to them. A worker is beside them: it chooses its platform, and nothing
below knows it.

base               the interface that the engine sees   (read first)
collective         the base of all executors: start-up stages, sizing of the KV cache, failure handling
uniproc            one worker in this process, and the thread that computes its steps
join               how a worker connects to the other ranks
worker             one device with the model, its KV cache and the batch
numerics           the numerics digest of a worker
"""
