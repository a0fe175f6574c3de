"""Links to other processes of the ring.

redial             one link kept alive: dial, carry, and dial again with backoff; one address per peer   (read first)
engine_link        the dialling end of ``EngineService.Attach``
discovery          a link for each address that was given, and for each that a name resolves to
channels           gRPC channels, and waiting for a server to be there
tokenizer_fetch    the tokenizer's files, from an engine
"""
