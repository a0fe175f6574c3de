"""TLS, certificates, bearer tokens, and authorization of calls.

credentials            from options to credentials (to listen and to dial with) and interceptors   (read first)
tls, certificates, tokens   its building blocks; file_reload: reads files again when they change, without a restart
auth_interceptor       authorizes each RPC before its first message; ServiceAuthorizer: services call services
certificate_checker    ends calls whose client certificate has expired or was revoked (CRLs)
certificate_authority  a development authority for ``ringline certs``
"""
