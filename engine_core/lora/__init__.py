"""LoRA adapters (Hu et al., 2021, https://arxiv.org/abs/2106.09685): their files, and which of them are loaded.

Read ``request`` first, then ``adapter`` and ``schedule``. What adapters compute is in ``ops.lora`` and ``layers.lora``.
"""
