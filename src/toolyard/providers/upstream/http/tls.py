"""TLS: whom we trust, read once for the whole process because that takes milliseconds."""

import ssl
from functools import cache

__all__ = ["tls_context"]


@cache
def tls_context() -> ssl.SSLContext:
    """Return what TLS is spoken with: the system's authorities, or those that SSL_CERT_FILE or SSL_CERT_DIR name."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
