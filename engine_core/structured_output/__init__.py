"""Structured output: the tokens a grammar allows next in a sequence. No other package of the engine uses llguidance.

compiler   grammars compiled once, kept by digest; each sequence gets its own matcher   (read first)
matcher    one sequence's place in its grammar: which tokens may come next, and which must
"""
