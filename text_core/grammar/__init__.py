"""Converts clients' constraints on answers to checked grammars for the engine.

In reading order:

constraints                          the kinds of constraints, and the error that refuses one
grammar_text                         constraint → grammar; reasoning before it
json_schema                          JSON Schema, its keywords checked one by one
regex, context_free, structural_tags the other notations
checker                              tries a grammar on the model's tokens (token_table), within limits
"""
