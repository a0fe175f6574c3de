"""Requests for vectors, scores and labels, whose inputs an engine pools in place of generating tokens.

To the client and the tokenization queue they are requests like others; an input is a choice, and its result its end.

purpose       what a model is for, and the refusal of what it is not for
plan          the message of a request, and what its answer is made of
validation    in a thread: checks that need no tokens
inputs        in a thread: a message's texts and pairs, of which text_core makes ids, cut where that is asked for
resolution    in a thread, several turns: a request's inputs, defaults and Submit
job           a request in the tokenization queue, some inputs at a turn
output        engines' results to requests
answers       results to the client's message: packed vectors, cosines, labels
"""
