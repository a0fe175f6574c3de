"""What a weight is, before anything computes with it.

source             what a part takes its tensors from, one at a time   (read first)
features           the inputs and outputs of linear layers, how they are grouped and padded, and their rows
experts            the sizes of experts, and their weights; expert_tensors: how checkpoints keep them
quantized_weight   a weight that stays quantized
"""
