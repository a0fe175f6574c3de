"""Servers under load: starts them, and provides load streams for servers that ``services.cli.bench`` does not know.

Every server is loaded by the load generator of ``ringline bench``, so all have the same client.
"""
