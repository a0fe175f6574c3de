"""The commands of ``ringline``, one file each, which ``services.cli.main`` finds; what they share has an underscore."""
