"""TLS, certificates, bearer tokens, and who may call what.

credentials            what the options yield: credentials to listen and to dial with, interceptors   (read first)
tls, certificates, tokens   the parts; file_reload: files that are read again when they change, without a restart
auth_interceptor       authorizes each RPC before its first message; ServiceAuthorizer: services call services
certificate_checker    ends calls whose client certificate has expired or was revoked (CRLs)
certificate_authority  a development authority for ``ringline certs``
"""
