"""The commands of ``ringline``, one file each, found by ``services.cli.main``; shared modules begin with ``_``."""
