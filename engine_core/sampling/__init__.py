"""From logits to sampled tokens.

sampler            the pipeline over the rows of a step   (read first)
metadata           sampling parameters of the batch, as vectors over its slots
logits_processors  allowed ids, bans, bias, penalties; top_k_top_p: temperature, min-p, top-k, top-p
noise              Gumbel noise as a pure function of (seed, choice, position, token id)
logprobs           log probabilities of given tokens and of the most likely ones
device_…           the same where the logits are on a GPU
"""
