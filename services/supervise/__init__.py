"""``ringline serve``: the three services on one machine.

stack              what is started, and how it is run until a signal   (read first)
supervisor         starts, watches, restarts and stops processes, and leaves none behind
runtime_directory  where a running stack is found: its sockets and its state
child_logs         what is shown of the services' logs
"""
