"""OAuth for upstreams: discovery, sign-in, stored tokens and their renewal.

Its files:

- `credentials`: OAuth credentials of an upstream: read from the vault, renewed before they expire, reread after a new
  login
- `servers`: safe and bounded requests to them, their discovery (RFC 9728, RFC 8414), and our registration
- `shared_vault`: the stored logins of upstreams in a store that several machines share, sealed with a key from
  `CALLYARD_SECRET`
- `signin`: sign-in at an upstream with OAuth: in a browser, as a client, or with cross-app access; renewal and
  revocation
- `vault`: the stored login of an upstream: in the system's keyring, or else in a file that only its owner can read
"""

__all__: list[str] = []
