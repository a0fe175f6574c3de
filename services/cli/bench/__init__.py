"""Load generation and measurement, as used by ``ringline bench``.

In reading order:

load_generator          when requests are sent: closed loop (a fixed number in flight) or open loop (Poisson arrivals)
measurement             TTFT, ITL, TPOT and latency of every request, and their percentiles
load_stream             interface that sends requests to a server and reads its answers
ring_load_streams       … of a processor, over one Session, or directly of an engine, over Attach
"""
