"""Ringline's engine: scheduler, executor, worker and model runner over a paged KV cache.

Usable on its own (``engine_core.llm.LLM``), without gRPC, protobuf or tokenizers.
Start reading at ``engine_core/README.md``.
"""
