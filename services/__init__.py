"""Ringline's processes.

processor, engine, detokenizer     the three services; none imports another
ring, text                         the protocol's state machines, and tokenizers and text: both pure
common                             what the services share
cli                                the command that runs them
"""
