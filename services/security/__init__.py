"""TLS, certificates, bearer tokens, and who may call what.

credentials        the options made into what a server listens with and what a link dials with   (read first)
tls, certificates, tokens   the parts; file_reload: read again when their files change, without a restart
auth_interceptor   asks once for each RPC whether its caller is let in
revocation         ends calls whose certificates hold no longer (CRLs)
certificate_authority   a development authority for ``ringline certs``
"""
