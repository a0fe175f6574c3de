"""The detokenizer service: token ids from engines in, text for processors out.

main         the process: start-up, life, end
service      Subscribe
subscribers  the processors, and what each is owed
decode       one engine's requests: ids → text, stop strings
frames       what a processor is owed → protobuf
engines      links to engines
"""
