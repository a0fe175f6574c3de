"""Logs, metrics and traces of a process.

logs               structured logs on stderr: formats, levels, rate-limited events
metrics            histograms, and the metrics of every service; each service's own are in its ``metrics.py``
metrics_endpoint   the HTTP port of ``/metrics``, ``/health`` and the live page
tracing            OpenTelemetry spans of requests
"""
