"""Limits of the contract that more than one service checks."""

MAX_CHOICES = 128
"""Per request."""
MAX_STOP_TOKEN_IDS = 64
"""Per request."""
MAX_ALLOWED_BY_NGRAM = 1024
"""Ids that ``no_repeat_ngram`` lets pass."""
MAX_NGRAM_SIZE, MAX_NGRAM_WINDOW = 1024, 65536
