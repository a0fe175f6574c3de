"""The life of one process, independent of gRPC.

run                runs a service's main function: exit codes, forbidden imports, death with the parent   (read first)
drain              the end: SIGTERM, the grace period, a second signal
heartbeat          heartbeats of the event loop, and how the supervisor checks them
watchdog           ends the process when something in it hangs
memory             resident memory, frequency of garbage collection, malloc's free memory
"""
