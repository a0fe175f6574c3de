"""The fallback: runs dense decoders that Ringline has no model for through transformers' modules.

``rules`` says which may be tried, ``trial`` observes on the meta device what a model passes to attention, ``assembly``
puts the engine's layers from ``modules`` in, and ``model`` is the model that workers see.
"""
