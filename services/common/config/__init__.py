"""Options: each is declared once, as a dataclass field, from which its flag, variable and documentation follow.

options            how a field declares an option; parses and checks values of flags and variables   (read first)
settings           the options of the three services with their defaults; security_settings: TLS and authentication
flags              options as flags of a command
variable_names     the ``RINGLINE_…`` variables that exist, and those set that do not exist, mostly misspelled
addresses          the default ports; the three forms of an address
errors             exit codes, and the error that ends a process with one sentence
"""
