"""Load generation and measurement, for ``ringline bench``.

In reading order:

load_generator          when requests are sent: closed loop (a fixed number in flight) or open loop (Poisson arrivals)
measurement             TTFT, ITL, TPOT and latency of every request, and their percentiles
load_stream             the interface for sending requests to a server and reading answers
ring_load_streams       … to a processor, over one Session, or directly to an engine, over Attach
"""
