"""Vectors, scores and labels in place of tokens.

``params`` has the data of requests and results, ``facts`` what a model offers. ``config`` reads how a checkpoint pools,
and ``pooler`` computes it.
"""
