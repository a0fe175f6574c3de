"""From logits to sampled tokens.

sampler            the pipeline over the rows of a step   (read first)
metadata           sampling parameters of the batch, as vectors over slots; the list of logits processors
logits_processors  allowed ids, bad words and minimum length, bias, penalties: a class each; grammar_mask: grammars;
                   no_repeat_ngram: no loops; reasoning_budget: forced ends of reasoning
base               operations per memory (top-k, …): numpy_ops for a CPU, torch_ops for a GPU
noise              Gumbel noise as a pure function of (seed, choice, position, token id)
logprobs           log probabilities of the sampled and the most likely tokens, packed
"""
