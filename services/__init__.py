"""Ringline's processes.

processor, engine, detokenizer     the three services; none imports the others
gateway                            HTTP in front of processors
ring                               the protocol's state machines, without I/O
common                             what the services share
cli                                the ringline command
"""
