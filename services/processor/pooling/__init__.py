"""Requests for vectors, scores and labels, whose inputs an engine pools in place of generating tokens.

On the ring they are requests like others: an input is a choice, and its result the choice's end.

plan       the message of a request, and what its answer is made of
answers    results to the client's message: packed vectors, scores, labels
wire       fields of large bytes, written without copies
purpose    what a model is for, and the refusal of what it is not for

``admission/pooling_…`` resolve them, ``pooled_output`` delivers their results.
"""
