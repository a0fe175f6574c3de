"""Servers under load: how they are started, and load streams to servers that ``services.bench`` does not know.

Every server is loaded by the load generator of ``ringline bench``, so all have the same client.
"""
