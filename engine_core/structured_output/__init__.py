"""Structured output: which tokens a grammar lets a sequence continue with. No other room of the engine uses llguidance.

compiler   grammars compiled once, kept by digest; each sequence gets a matcher of its own   (read first)
matcher    one sequence's place in its grammar: which tokens may come next, and which must
"""
