"""The live page on the metrics port: pages serves it, snapshot computes its numbers."""
