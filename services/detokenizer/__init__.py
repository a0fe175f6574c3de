"""The detokenizer service: token ids from engines in, text for processors out.

In reading order:

main       the process: start-up, serving, drain
engines    the links to engines, each with a decoder and its tokenizer
decode     one link's requests: ids → text, stop strings
service    Subscribe: the processors, and the stream to each
detokenizer_messages   updates → messages
metrics    requests, tokens, links and subscribers
"""
