"""``vllm.grpc.engine.VllmEngine``, answered by a processor: as which gateways such as SMG drive vLLM's engine.

requests reads what vLLM calls a request (structural_tags: one kind of constraint), answers writes what comes of it,
facts says what model and server are and how loaded, service has the RPCs. Requests are admitted, routed and moved as
those of ``InferenceService`` are. Messages come from smg-grpc-proto, which is imported only here.
"""
