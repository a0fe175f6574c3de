"""The commands of ``ringline``, one file each; ``services.cli.main`` finds them."""
