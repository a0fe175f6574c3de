"""Checks continuations against transformers: each token is the one that it would choose after those before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

NEAR = 2e-4
"""Logits that differ less may be in either order, as float32 arithmetic in another order rounds otherwise."""


@torch.inference_mode()
def assert_greedy(model: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int]) -> None:
    """``tokens`` continue ``prompt`` greedily, and nearly all of them decisively.

    One forward pass of all of them, without a cache: by induction, these are the tokens of ``generate``.
    """
    ids = torch.tensor([[*prompt, *tokens]], device=model.device)
    logits = model(ids).logits[0, len(prompt) - 1 : -1].float().cpu()
    best = logits.topk(2).values
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    wrong = (best[:, 0] - chosen >= NEAR).nonzero().flatten().tolist()
    assert not wrong, f"the first of {len(wrong)} other tokens is token {wrong[0]} of {len(tokens)}"
    assert (best[:, 0] - best[:, 1] >= NEAR).float().mean() > 0.9
