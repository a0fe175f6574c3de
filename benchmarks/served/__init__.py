"""Servers under load: how they are started, and how what is not ours is reached by the load generator of ``ringline
bench`` (``services.bench``), so that every server has the same client.
"""
