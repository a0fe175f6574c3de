"""Admission: what a request must pass before an engine sees it, in this order.

backlog, rate_limiter   the admission limit, and each tenant's limits (tenant_policy); throughput: how fast work leaves
tenant_window           how many requests of a tenant may be ahead of what engines compute
tokenization_queue      worker threads, fair between tenants (deficit_round_robin, over bytes)
validation              in a thread: what a request may ask for
request_resolution      in a thread: prompt ids, every default
"""
