"""The ``ringline`` command: its subcommands, and the code that runs and measures rings.

main               finds the subcommand
commands           the subcommands, one file each
supervise          the three services as child processes on one machine
bench              load generation and measurement
"""
