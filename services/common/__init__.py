"""Plumbing shared by the services and the gateway, specific to none; the protocol is in ``ring``.

config             options: declared once, read from flags and variables
links              connections to other processes of the ring: dial, keep, redial
process            the life of one process: start, end, hangs
rpc                a gRPC server and its limits
security           TLS, certificates, tokens, authorization
telemetry          logs, metrics, traces
"""
