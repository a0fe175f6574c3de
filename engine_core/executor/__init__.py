"""Executors: how a plan reaches the workers. One verb: run the plan.

base               the interface that the engine sees   (read first)
collective         what all executors share: the stages of the start, the minimum over workers, failure
uniproc            one worker in this process, and the thread that computes its steps
"""
