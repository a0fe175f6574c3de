"""HTTP as every endpoint needs it: the server and its limits, bodies, server-sent events, errors."""
