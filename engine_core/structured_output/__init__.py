"""Structured output: what a grammar lets a sequence go on with, by llguidance, which no other module imports.

compiler   grammars compiled once, kept by digest; each sequence gets a matcher of its own   (read first)
matcher    one sequence's place in its grammar: which tokens may come next, and which must
tokenizer  the bytes of the model's tokens, from its tokenizer's files
"""
