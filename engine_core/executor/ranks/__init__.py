"""Ranks: workers in processes of their own. A rank that fails ends the engine: a group is never repaired.

workers        calls, steps, failure and the end, over any processes   (read first)
launcher       the interface of what starts them; local: on this host (like vLLM's ``MultiprocExecutor``)
connection     the messages between an engine and its ranks
loop           answers them, in the rank; local_main: what its process runs on this host
process        a rank's process as the engine sees it; monitor: sees when one fails
child_process  a process that this one starts; process_title: what ps shows of it
identity       what must be equal on all ranks
"""
