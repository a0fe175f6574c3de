"""Options: a dataclass field declares each one; flag, variable and documentation derive from it.

options            declares an option as a field; parses and checks values of flags and variables   (read first)
settings           the options of the three services with their defaults; security_settings: TLS and authentication
flags              options as flags of a command
foreign_flags      flags of other programs: vllm_options, llama_server_options
variable_names     the known ``RINGLINE_…`` variables, and a search for unknown (misspelled) ones
addresses          the default ports; the three forms of an address
errors             exit codes, and the error that ends a process with one sentence
"""
