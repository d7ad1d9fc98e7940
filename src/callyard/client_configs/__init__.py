"""Configuration files of MCP clients: found, read, and edited as text; nothing in them is ever run.

Its files:

- `clients`: their names, where their configuration files are, and how an entry for a server looks there
- `connect`: import of clients' servers into 'callyard.toml', and changes that connect a client to Callyard
- `edit`: edits of TOML and JSON as text: what is not edited stays as it is, comments and trailing commas included
- `read`: servers read from the configuration files of clients, whose different keys become those that most clients
  use
- `secrets`: recognised by name and form, masked for display, and moved out of the table
"""

__all__: list[str] = []
