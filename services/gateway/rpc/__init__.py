"""The contract's InferenceService for browsers, at the HTTP port: gRPC-Web and Connect.

inference     the methods, and what a call of one looks like   (read first)
grpc_web, connect   the two protocols: messages, ends and timeouts on the wire; pure
status        errors of the ring as google.rpc.Status
"""
