"""Executors: start the workers and pass plans to them. A worker is beside them: it chooses its platform, and nothing
below knows it.

base         the interface that the engine sees   (read first)
collective   the executor over workers, which engine_core/startup.py starts
workers      the interface of workers, wherever they run; failure: why they compute nothing more
uniproc      one worker in this process
ranks        a process for each worker on this host, and what any worker in another process needs
ray          an actor for each worker, on the nodes of a Ray cluster
worker       one device with the model, its KV cache and the batch
join         how a worker connects to the other ranks; numerics: what decides its bits; grammars: its compiler
"""
