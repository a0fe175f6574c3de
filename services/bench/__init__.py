"""Drives load and measures it: what ``ringline bench`` does, without its flags.

In reading order:

load_generator          when requests are sent: closed loop (a fixed number in flight) or open loop (Poisson arrivals)
measurement             TTFT, ITL, TPOT and latency of every request, and their percentiles
load_stream             how requests reach a server, and how its answers reach the load generator
session_load_stream     … through a processor, over one Session
engine_load_stream      … straight into an engine, over Attach
"""
