"""HTTP for every endpoint: the server and its limits, bodies, server-sent events, errors."""
