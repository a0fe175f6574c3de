"""The protocol's state machines, pure: no gRPC, no asyncio, no clock of their own.

In reading order:

identity, events, errors, logprobs    what messages carry: peers and ring ids, deltas and ends, status codes
ledger, cursor, attach_registry       the engine's side: one entry per request, one cursor per link and request
outbox, peer_list, liveness           what every sender keeps for its readers, and how it knows that they live
routing_logic, prefixes               the processor's side: which engine and detokenizer a request gets
delivery, route_timeout, poison       what it remembers of each request
model_generations, deadline_queue     what it holds of each model, and items by due time
dynamic_threshold, roles              bounds per tenant, and what a certificate allows
"""
