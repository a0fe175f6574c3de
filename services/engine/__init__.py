"""The engine service: serves ``engine_core`` as ``EngineService``.

A request goes attach_stream → ``services.ring.attach_registry`` → async_engine → step_loop; one with a constraint waits
in grammar_queue before the step loop. Its output goes step_loop (``StepReport``) → async_engine → ``attach_registry``,
which keeps it in the ledger → ``services.ring.outbound_link`` → attach_stream.

In reading order:

main                       the process: start-up, serving, drain, end
service, attach_stream     the RPCs, and one Attach stream: commands in, frames out
async_engine, step_loop    the engine on the event loop, and the thread that computes
grammar_queue              requests whose grammars are compiled, in other threads
submit_limits, engine_messages   the size limits of a Submit; messages ⇄ ``engine_core`` and ring types
startup_log, large_messages, tokenizer, metrics, tracing, profile    used by these
"""
