"""The life of one process, independent of gRPC.

run                runs a service's main function: exit codes, forbidden imports, death with the parent   (read first)
drain              the end: SIGTERM, the grace period, a second signal
heartbeat          a hang judged from outside: the event loop's beats, and how the supervisor checks them
watchdog           a hang judged from inside: a thread that ends the process
memory             resident memory, frequency of garbage collection, malloc's free memory
"""
