"""Pictures of requests: their parts in the ring's form, and those that a URL names, fetched from allowed hosts."""
