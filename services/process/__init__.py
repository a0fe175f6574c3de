"""One process by itself.

run                runs a service's main function: readable fatal errors, forbidden imports, no life after its parent
heartbeat          signs of life for a supervisor
watchdog           ends a process in which something hangs
memory             the garbage collector, and free memory that goes back to the system
"""
