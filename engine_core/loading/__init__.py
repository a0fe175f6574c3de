"""From a checkpoint on disk (or on the hub) to tensors in memory."""
