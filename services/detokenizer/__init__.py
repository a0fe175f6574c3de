"""The detokenizer service: token ids from engines in, text for processors out.

In reading order:

main             the process: start-up, serving, drain
engines          the links to engines, each with a decoder and its tokenizer
engine_decoder   one link's requests: ids → text, stop strings, into the outboxes of subscribers
subscribers      the subscribed processors, each with its outbox
service          Subscribe: streams each outbox to its processor
detokenizer_messages   updates → messages
metrics          requests, tokens, links and subscribers
"""
