"""Grammars of answers: what a client asks of the form of an answer, checked and written as the engine reads it.

In reading order:

constraints                          what can be asked, and the error that refuses it
grammar_text                         constraint → grammar; reasoning before it
json_schema                          JSON Schema, its keywords checked one by one
regex, context_free, structural_tags the other notations
checker                              tries a grammar on the model's tokenizer, within limits
"""
