"""Limits of the contract that more than one service checks."""

MAX_CHOICES = 128
"""Per request."""
MAX_BEAM_WIDTH = 64
"""Per request."""
MAX_LENGTH_PENALTY = 5.0
MAX_STOP_TOKEN_IDS = 64
"""Per request."""
MAX_ALLOWED_BY_NGRAM = 1024
"""Ids that ``no_repeat_ngram`` lets pass."""
MAX_NGRAM_SIZE, MAX_NGRAM_WINDOW = 1024, 65536
PICTURE_OVERHEAD_BYTES = 16 << 10
"""Charged at an engine for each picture besides its pixels; so a store of pictures of a few pixels is bounded, too."""
