"""A gRPC server and its limits.

server             its lifecycle: bind, serve, stop   (read first)
call_interceptor   every call: counted, authorized, read, answered; errors become statuses
handlers           the handlers of a service's methods: requests as bytes, and how long one may take to arrive
shared_messages    statuses, handshakes and logprobs ⇄ protobuf; also constraint_messages, part_messages (typed parts)
grpc_options, bind_address, health   gRPC's options with their reasons, the address before gRPC binds it, health checks

Limits, and what happens when they are exceeded:
message_limits     bytes and fields of one message, before it is parsed
open_calls, connections   calls and connections, in all and per client
output_stream      the writing side: how long a reader may read nothing, and how much output may wait
memory_guard       memory of the whole process, whatever arrives
"""
