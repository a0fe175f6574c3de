"""Ringline's processes.

processor, engine, detokenizer     the three services; none imports another
gateway                            HTTP in front of processors
ring                               the protocol's state machines, pure
common                             what the services share
cli                                the command that runs them
"""
