"""The gateway: HTTP in front of processors. OpenAI's and Anthropic's APIs, a chat page, gRPC-Web and Connect.

It keeps no state beyond a request's answer, and no secrets: it passes a caller's token to a processor, which decides.
Read ``app`` first (from a request to its endpoint), then ``generation``, then ``openai.chat``.

    http       one HTTP server: connections, load, bodies, TLS, events, errors
    generation the path of every endpoint that generates: parse, ask, stream or answer; answer: what comes back
    fields     fields of bodies, checked; other_forms: what other APIs call them; parts: what messages consist of
    processors the connections to processors; readiness: whether one serves
    operations for operators: health, version, metrics
    callers    a session with the processors for each caller
    openai     OpenAI's endpoints
    anthropic  Anthropic's endpoints
    pooling    endpoints of vectors, scores and labels, in several APIs' forms
    turns      conversations in blocks or items, as the ring's messages; token_texts: what ids read as
    page       the chat page
    rpc        the gRPC contract for browsers: gRPC-Web and Connect
"""
