"""Helpers that know nothing of tools: files, pipes, lazy imports, signed tokens, log lines.

Its files:

- `addresses`: which hosts only this machine can reach, and the origins of URLs
- `converted`: values that come in several forms: structs whose fields are converted before they are made, and JSON of
  strangers
- `files`: atomic and private files, the state directory, and the file systems that they are on
- `lazy`: modules and public names that are loaded when first used
- `logfmt`: log lines: an event followed by `key=value` fields, and exceptions without contents
- `mask`: masks secrets in what people read: log lines, states of upstreams, cards of approvals, settings
- `pipes`: pipes, terminals and files on the event loop: lines from bytes, a reader and a writer with back-pressure
- `programs`: programs that end with us, in process groups of their own
- `project`: which project a yard or a command belongs to, and the folder in the state directory that is the project's
  alone
- `signed_tokens`: JSON with an HMAC, readable by its holder but not forgeable
- `tasks`: tasks of the event loop: those of requests and of open contexts
- `webhooks`: signed requests to the services of operators
"""

__all__: list[str] = []
