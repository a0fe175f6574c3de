"""Tensors of random numbers are the same in every run: what fails once fails again."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)
