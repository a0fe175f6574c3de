"""A gRPC server and what protects it.

server             its lifecycle: bind, load, serve, drain, stop   (read first)
handlers           how an RPC reaches a service; error_interceptor: how errors leave it; protobuf: shared messages
message_limits, calls, connections, memory_guard   limits, each with what happens when it is exceeded
output_stream      a response stream, and how long a slow reader may delay a write (the stall timeout)
grpc_options, bind_address, health   gRPC's options with their reasons, the address before gRPC binds it, health checks
"""
