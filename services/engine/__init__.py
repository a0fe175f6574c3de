"""The engine service: ``engine_core`` behind ``EngineService``.

In reading order:

main                       the process: start-up, serving, drain, end
service, attach            the RPCs, and one Attach stream: commands in, frames out
async_engine, step_loop    the engine on the event loop, and the thread that computes
limits, protobuf           what a Submit may hold; messages ⇄ ``engine_core`` and ring types
startup_log, large_messages, tokenizer, metrics, tracing, profile    what these use
"""
