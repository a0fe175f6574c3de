"""The commands of ``ringline``, one file each; ``services.cli`` finds them."""
