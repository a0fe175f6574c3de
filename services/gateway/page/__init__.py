"""The chat page: one static file that asks the gateway's own ``/v1/chat/completions``."""
