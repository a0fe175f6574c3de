"""Limits of the contract that more than one service checks."""

MAX_CHOICES = 128
"""Per request."""
MAX_STOP_TOKEN_IDS = 64
"""Per request."""
