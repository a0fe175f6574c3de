"""The ``ringline`` command: its subcommands, and what runs and measures whole rings for them.

main               finds the subcommand
commands           the subcommands, one file each
supervise          the three services as child processes on one machine
bench              load, and its measurement
"""
