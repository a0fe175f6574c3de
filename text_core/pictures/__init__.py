"""Pictures in a prompt: how a family resizes and cuts them, and which tokens stand for them. Pure but for ``decode``.

Read ``base`` first; ``registry`` finds a model's family. ``decode`` opens files, in a process of its own (``child``).
"""
