"""Ringline's processes: the three services, what they share, and the command that runs them."""
