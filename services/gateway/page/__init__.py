"""The chat page: one static file that calls the gateway's ``/v1/chat/completions``."""
