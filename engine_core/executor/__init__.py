"""Executors: start the workers and pass plans to them. A worker chooses its platform; nothing below it knows which.

base         the interface that the engine sees   (read first)
collective   the executor over workers, which engine_core/startup.py starts
workers      the interface to workers, wherever they run; failure: why they have stopped
uniproc      one worker in this process
ranks        a process per worker on this host, and what any worker in another process needs
ray          an actor per worker, on the nodes of a Ray cluster
"""
