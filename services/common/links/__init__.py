"""Links to other processes of the ring.

redial             keeps a link to one address: dial, run, redial with backoff   (read first)
engine_link        the dialling end of ``EngineService.Attach``
discovery          a link per given address and per address that a name resolves to; one link per peer
channels           endpoints and their gRPC channels, health checks, waiting until a server serves
tokenizer_fetch    the tokenizer's files, from an engine
"""
