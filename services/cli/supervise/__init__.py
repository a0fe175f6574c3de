"""``ringline serve``: the three services on one machine.

stack              the services' command lines and addresses; runs them until a signal   (read first)
supervisor         starts child processes, watches their heartbeats, restarts and stops them
runtime_directory  where a running stack keeps its sockets and its state
child_logs         selects and formats the services' log lines
"""
