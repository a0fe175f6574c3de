"""The engine service: ``engine_core`` behind ``EngineService``.

main         the process: start-up, life, end
options      command-line options → ``EngineConfig``
step_loop    the thread in which the core computes
service      the RPCs
attach       one attached peer: its commands in, its frames out
frames       a link's frame → protobuf
wire         the one place where protobuf meets ``engine_core``
tokenizer    the tokenizer's files for the CPU tiers
"""
