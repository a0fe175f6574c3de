"""TLS, certificates, bearer tokens, and authorization of calls.

credentials            from options to credentials (to listen and to dial with) and authorizers   (read first)
certificates, tokens   its building blocks; file_reload: reads files again when they change, without a restart
authorization          which service may call which method
certificate_checker    ends calls whose client certificate has expired or was revoked (CRLs)
certificate_authority  a development authority for ``ringline certs``
"""
