"""Copies to a device: one piece of memory for all arrays."""

import numpy as np
import torch

from engine_core.async_copy import upload


def test_arrays_arrive_as_they_were_in_one_aligned_piece() -> None:
    arrays = [np.arange(5), np.ones((3, 1), np.float32), np.empty(0, np.int32), np.arange(6.0).reshape(2, 3)[:, :2]]
    memory = torch.empty(400, dtype=torch.uint8)
    for array, tensor in zip(arrays, upload(arrays, torch.device("cpu"), into=memory), strict=True):
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype
        assert tensor.data_ptr() % 16 == 0 or not array.size
