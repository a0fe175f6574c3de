"""From a client's message to a request with prompt ids: what is checked, what waits, and who has to come later.

intake             where clients' requests begin, are refused and end   (read first)
validation         what a request may ask for; resolve: prompt ids and every default
tokenization_queue tokenizes off the event loop, in batches; tenants take turns (deficit_round_robin)
tenant_window, backlog, throughput   how many requests may be ahead of the engines, and how long one more would wait
rate_limiter, tenant_policy   how much each tenant may have
"""
