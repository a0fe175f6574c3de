"""The fallback: dense decoders that transformers has and Ringline has not, through transformers' own modules.

``rules`` says which may be tried, ``trial`` finds out on the meta device what one hands to attention, ``modules`` puts
the engine's layers and attention in, and ``model`` is the model that workers see.
"""
