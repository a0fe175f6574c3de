"""InferenceService for browsers, on the HTTP port: gRPC-Web and Connect.

inference     the methods, and the form of a call   (read first)
grpc_web, connect   the two protocols' messages, ends and timeouts on the wire; pure
status        the ring's errors as google.rpc.Status
"""
