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
MAX_POOLED_INPUTS = 2048
"""Inputs of a request for vectors, scores or labels."""
MAX_POOLED_CHOICES = 2 * MAX_POOLED_INPUTS
"""What an engine computes of such a request: queries and documents, for example."""
MAX_POOLED_BYTES = 32 << 20
"""Of the results of such a request."""
MAX_ADAPTERS = 10_000
"""Names that an engine knows."""
MAX_ADAPTER_PATH_BYTES = 4096
MAX_LISTED_WITH_ADAPTER = 256
"""Adapters of a model that its caller may not use by itself, which are listed as models; ListAdapters has all."""
MAX_LISTED_ADAPTERS = 1000
"""Names in one answer of ListAdapters."""
PICTURE_OVERHEAD_BYTES = 16 << 10
"""Charged at an engine for each picture besides its pixels; so a store of pictures of a few pixels is bounded, too."""


def max_pooled_tokens(max_model_len: int) -> int:
    """Most tokens of such a request's inputs together."""
    return max(1 << 20, max_model_len)
