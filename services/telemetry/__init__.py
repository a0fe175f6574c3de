"""What a process tells about itself.

logs               structured logs on stderr: format, levels, lines that are limited in rate
metrics            what every service counts; each service's own metrics are in its room
metrics_endpoint   the HTTP port of ``/metrics``, ``/health`` and the dashboard
tracing            OpenTelemetry spans of requests
"""
