"""Weights, before anything computes with them.

source             from which a part takes its tensors, one at a time   (read first)
features           the inputs and outputs of linear layers: groups, padding, rows
experts            the sizes of experts, and their weights; expert_tensors: their layout in checkpoints
quantized_weight   a weight that stays quantized
"""
