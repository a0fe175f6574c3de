"""A gRPC server and what protects it.

server             its life: bind, load, serve, drain, stop   (read first)
handlers           how an RPC reaches a service; error_interceptor: how errors leave it; protobuf: shared messages
message_limits, memory_guard, calls, connections   bounds: a message before it is parsed, memory, calls, connections
output_stream      a stream that is written to, and how long its reader may keep a write waiting (the stall timeout)
transport, listening, health   gRPC's options, addresses to listen on, health checks
"""
