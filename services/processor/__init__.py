"""The processor service: admits, tokenizes and routes clients' requests, and delivers their output.

Read request first (one request, from its frame to its end), then the modules that it passes, in these orders. Each
stage hands it on to the next, and never back; admission is told as well when a request is begun and when it ends.

From the client to an engine:

service            the RPCs: reads frames, writes responses    client_stream: one client's stream and its outbox
intake             receives, refuses and cancels requests
admission/         limits and what requests take of them, tokenization, validation, resolution
in_flight          requests between admission and end: starts and ends them
dispatcher         which request is on which route, Submit and Redirect    (choice: services.ring.routing_logic)
linked_peers       the linked engines and detokenizers: load, liveness

From engines and detokenizers back to the client:

link_events        events of links    detokenizer_link: the subscription to one detokenizer
text_output        frames of detokenizers to clients' outboxes
failover           when a request moves: retry, resubmit, redirect, replay, route timeout
in_flight          ends it

Both use served_models (models, their limits, tokenizers and checked_grammars). Not on the way: main (start, drain),
authentication and json_web_tokens (principal), inference_messages (protobuf), vllm_engine_api/ (vLLM's contract, where
it is asked for), and for operators metrics, request_log, tracing, dashboard/.
"""
