"""The dashboard on the metrics port: pages serves it, snapshot computes its numbers."""
