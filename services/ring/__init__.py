"""The protocol's state machines, pure: no gRPC, no asyncio, no clock.

In reading order:

identity, events, errors, logprobs    what messages carry: peers and ring ids, deltas and ends, status codes
ledger, outbound_link, attach_registry   the engine's side: one entry per request, one cursor per link and request
outbox, attached_peers, liveness      what a sender keeps for each reader, the list of peers, and failure detection
routing_logic, prefixes               the processor's side: which engine and detokenizer a request gets
delivery, route_timeout, poison       its state per request: output delivered, time without a route, crashed engines
model_generations, deadline_queue     its state per model generation, and items by due time
tenant_quota, roles                   bounds per tenant, and what a certificate allows
limits                                the contract's limits that several services check
"""
