"""A gRPC server and what protects it.

server             its life: bind, load, serve, drain, stop   (read first)
handlers           how an RPC reaches a service; error_interceptor: how errors leave it; protobuf: shared messages
message_limits, calls, connections, memory_guard   limits, each with what happens beyond it
output_stream      a response stream, and how long its reader may keep a write waiting (the stall timeout)
grpc_options, bind_address, health   gRPC's options with their reasons, the address before gRPC binds it, health checks
"""
