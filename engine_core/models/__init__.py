"""Models: a registry and one file per family."""
