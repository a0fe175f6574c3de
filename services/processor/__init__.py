"""The processor service: admits, tokenizes and routes clients' requests, and delivers their output.

Read request first (the state of one request), then the modules below, in the order in which requests pass them. A stage
passes requests to the next, never back; admission is also notified when a request begins and ends.

From the client to an engine:

service            the RPCs: reads frames, writes responses    client_stream: one client's stream and its outbox
intake             receives, refuses and cancels requests
admission/         limits and their use, tokenization, validation, resolution
in_flight          requests between admission and end: starts and ends them
dispatcher         each request's route, Submit and Redirect    (choice of route: services.ring.routing_logic)
linked_peers       the linked engines and detokenizers: load, liveness

From engines and detokenizers back to the client:

link_events        link events    detokenizer_link: the subscription to one detokenizer
text_output        detokenizers' frames to clients' outboxes
pooled_output      engines' results of inputs to answers        (what those are made of: pooling/)
failover           when a request moves: retry, resubmit, redirect, replay, route timeout
in_flight          ends requests

Both use served_models (models, their limits, tokenizers and checked_grammars; suitability: which one a request without
a name means). Not on the path: main (start, drain),
authentication and json_web_tokens (principal), inference_messages (protobuf), vllm_engine_api/ (vLLM's gRPC API,
optional), and for operators metrics, request_log, tracing, live_page/.
"""
