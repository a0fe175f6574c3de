"""The engine service: ``engine_core`` behind ``EngineService``.

main               the process: start-up, life, end
progress           start-up as log lines
step_loop          the thread in which the core computes
service            the RPCs
attach             one attached peer: its commands in, its frames out
hub                what all attached peers share: the switchboard, and who is to be woken
wire               the one place where protobuf meets ``engine_core``
limits             how much a Submit may hold
frames             a link's frame → protobuf
traces             this process's spans of requests that are traced
profile            recording a profile of the next steps
tokenizer          the tokenizer's files for the CPU tiers
"""
