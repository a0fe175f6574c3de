"""The fallback: dense decoders without a model of Ringline's own, run through transformers' modules.

``rules`` says which may be tried, ``trial`` finds out on the meta device what one passes to attention, ``modules`` puts
the engine's layers and attention in, and ``model`` is the model that workers see.
"""
