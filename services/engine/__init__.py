"""The engine service: serves ``engine_core`` as ``EngineService``.

Submit → attach_stream → attach_registry → async_engine → step_loop, by way of grammar_queue if it has a constraint, and
of adapters.queue if it has an adapter
frames ← attach_stream ← outbound_link ← ledger ← attach_registry ← async_engine ← ``StepReport`` ← step_loop

attach_registry, ledger and outbound_link are in ``services.ring``.

In reading order:

main                       the process: start-up, serving, drain, end
service, attach_stream     the RPCs, and one Attach stream: commands in, frames out
async_engine, step_loop    the engine on the event loop, and the thread that computes
grammar_queue              requests whose grammars are compiled, in other threads
adapters                   LoRA adapters: which are known, and requests that wait until theirs is loaded
submit_limits, engine_messages   the size limits of a Submit; messages ⇄ ``engine_core`` and ring types
pooling_messages                 the same for requests whose inputs are pooled
startup_log, load_log, large_messages, tokenizer, metrics, tracing, profile    used by these
"""
