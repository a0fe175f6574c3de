"""Ringline's processes.

processor, engine, detokenizer     the three services; none imports another
gateway                            HTTP in front of processors
ring, text                         the protocol's state machines, and tokenizers and text: both pure
common                             what the services share
cli                                the command that runs them
"""
