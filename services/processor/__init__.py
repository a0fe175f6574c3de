"""The processor service: admits, tokenizes and routes clients' requests, and delivers their output.

Read request first (one request, from its frame to its end), then the modules that it passes, in this order. Calls only
go down this list; events of links come up through link_events, which is constructed with the objects that it calls.

service            the RPCs: reads frames, writes responses    client_stream: one client's stream and its outbox
intake             receives, refuses and cancels requests
admission/         limits (backlog, rate_limiter), tokenization_queue, validation, request_resolution
in_flight          requests between admission and end: frames, usage
failover           when a request moves: retry, resubmit, redirect, replay, route timeout
dispatcher         which request is on which route, Submit and Redirect    (choice: services.ring.routing_logic)
peers              engines and detokenizers: load, liveness    detokenizer_link: the subscription to one detokenizer
served_models      models, their limits and tokenizers

Not on this path: main (start, drain), authentication and json_web_tokens (principal), protobuf, and for operators
metrics, request_log, tracing, recent_events and dashboard/.
"""
