"""Pictures of requests: decoded in processes of their own (``pool``)."""
