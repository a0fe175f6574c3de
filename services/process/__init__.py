"""One process by itself.

run                runs a service's main function: exit codes, forbidden imports, death with the parent   (read first)
heartbeat          beats of the event loop, and the supervisor's check of them
watchdog           ends the process when something in it hangs
memory             resident memory, the garbage collector's pace, what malloc keeps
"""
