"""Memory for tensors that are converted while a checkpoint is read."""

from __future__ import annotations

import torch

from engine_core.weights.source import Staging


def test_what_is_still_used_is_not_lent_again() -> None:
    staging = Staging(torch.bfloat16, torch.device("cpu"))
    first = staging.make((4, 8)).fill_(1)
    column = first[:, 3].unsqueeze(0)
    del first
    second = staging.make((2, 8)).fill_(2)
    third = staging.make((2, 8)).fill_(3)
    assert column.tolist() == [[1.0] * 4]
    assert second.unique().tolist() == [2.0]
    assert third.unique().tolist() == [3.0]


def test_what_was_let_go_is_lent_again() -> None:
    staging = Staging(torch.float32, torch.device("cpu"))
    first = staging.make((4, 8))
    place = first.data_ptr()
    del first
    assert staging.make((2, 3)).data_ptr() == place
    assert staging.make((32,)).data_ptr() == place
    assert staging.make(()).shape == ()
