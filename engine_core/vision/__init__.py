"""Vision models: the towers and projectors that turn pictures into embeddings of a language model. A file per family.

Read ``engine_core.models.vision_model`` first, then ``registry``.
"""
