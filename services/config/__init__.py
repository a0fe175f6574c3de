"""Options: each is declared once, as a field, and gets its flag, its variable and its line in docs/configuration.md.

options            how a field declares an option, and how values are read and checked   (read first)
settings           the options of the three services; security_settings: TLS and who may call
flags              options as flags of a command; environment: which ``RINGLINE_…`` variables mean something
addresses          addresses and names of processes
errors             exit codes, and the error that ends a process with a sentence
"""
