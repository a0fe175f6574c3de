"""Attention over a paged KV cache: one file per backend behind the interface in ``base``."""
