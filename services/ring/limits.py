"""Limits of the contract that more than one service checks."""

MAX_CHOICES = 128
"""Of one request."""
MAX_STOP_TOKEN_IDS = 64
"""Of one request."""
