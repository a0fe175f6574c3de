"""Ringline's engine: scheduler, executor, worker and model runner over a paged KV cache.

Importable and usable alone (``engine_core.llm.LLM``); it knows nothing of gRPC, protobuf or tokenizers.
Start reading at ``engine_core/README.md``.
"""
