"""What the services and the gateway share beside the protocol (``ring``): plumbing that knows no service.

config             options: declared once, read from flags and variables
links              connections to other processes of the ring: dialled, kept, redialled
process            the life of one process: how it starts, ends and is watched
rpc                a gRPC server and what protects it
security           TLS, certificates, tokens, and who may do what
telemetry          logs, metrics, traces
"""
