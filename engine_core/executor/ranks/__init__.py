"""Ranks: workers in their own processes. A rank that fails ends the engine: a group is never repaired.

workers        calls, steps, failure and shutdown, over any processes   (read first)
launcher       the interface that starts them; local: on this host (like vLLM's ``MultiprocExecutor``)
connection     the messages between an engine and its ranks
loop           answers them, in the rank; local_main: the entry point of its process on this host
process        a rank's process as the engine sees it; monitor: detects failures
child_process  a process that this one starts
identity       what must be equal on all ranks
"""
