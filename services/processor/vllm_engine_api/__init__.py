"""vLLM's gRPC API, ``vllm.grpc.engine.VllmEngine``, by which gateways such as SMG drive vLLM, served by a processor.

requests converts requests (structural_tags: one kind of constraint), answers converts output, facts describes model,
server and load, service has the RPCs. Requests are admitted, routed and moved like those of ``InferenceService``.
Messages come from smg-grpc-proto, which is imported only here.
"""
