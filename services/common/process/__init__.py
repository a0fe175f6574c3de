"""The life of one process, independent of gRPC.

run                runs a service's main function: exit codes, forbidden imports, death with the parent   (read first)
drain              the end: SIGTERM, the grace period, a second signal
heartbeat          detects a hang from outside: the event loop beats, the supervisor checks
watchdog           detects a hang from inside: a thread ends the process
memory             resident memory, frequency of garbage collection, malloc's free memory
"""
