"""Executors: start the workers and pass plans to them. A worker is beside them: it chooses its platform, and nothing
below knows it.

base               the interface that the engine sees   (read first)
collective         the base of all executors: start-up stages, sizing of the KV cache, failure handling
uniproc            one worker in this process, and the thread that computes its steps
remote             the base of executors with a process for each rank: calls, steps, failure, the end
multiproc          its processes are on this host: local_rank starts one, which runs worker_main
rank_connection    the messages between an executor and its ranks; rank_loop answers them, in the rank
rank_process       a rank's process as the executor sees it; rank_monitor sees when one fails
identity           what must be equal on all ranks; process_title: what ps shows of them
join               how a worker connects to the other ranks
worker             one device with the model, its KV cache and the batch
numerics           the numerics digest of a worker
"""
