"""Ranks as actors on the nodes of a Ray cluster (like vLLM's ``RayDistributedExecutor``).

launcher   has Ray place and start them, through a process beside this one   (read first)
cluster    that process: the only module that imports ray
messages   the messages between the two
tcp        connections between the hosts of an engine
"""
