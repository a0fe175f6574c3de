"""The gateway: HTTP in front of processors. OpenAI's and Anthropic's APIs, a chat page, gRPC-Web and Connect.

It holds no state of a request beyond its answer, and no secrets: a caller's token goes on to a processor, which
decides. Read ``app`` first (from a request to its endpoint), then ``openai.chat``.

    http       one HTTP server: connections, load, bodies, TLS, events, errors
    processors the connections to processors; readiness: whether one serves
    operations what operators ask: health, version, metrics
    callers    a session with the processors for each caller
    openai     OpenAI's endpoints
    anthropic  Anthropic's endpoints
    turns      what both take block by block as messages of the ring
    page       the chat page
    rpc        the contract for browsers: gRPC-Web and Connect
"""
