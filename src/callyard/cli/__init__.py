"""The command line: each command parses, calls one public function and prints.

Its files:

- `call`: `callyard call`, `code` and `runtime`: call a tool or run a program, and show what can run programs
- `clients`: `callyard import` and `callyard connect`: servers from MCP clients' files, and Callyard into them
- `commands`: the commands, each with its arguments and options, as a table
- `config`: commands about settings: print them, create API keys, and add upstreams to 'callyard.toml' or remove them
- `demo`: a tour of what an agent sees of a yard with hundreds of tools, without a network or a model
- `doctor`: check what a server with some settings needs, and print how to mend it
- `inspect`: `callyard describe`, `list`, `manifest` and `policy explain`: a yard's tools, and which rule decides
  about a call
- `login`: `callyard login` and `callyard logout`: OAuth at an upstream, with a browser, and the stored login
- `packs`: which packs are installed, named and open, here or at a running server, and what is missing
- `parser`: the parser of the command line
- `probe`: probe MCP servers once, and print what was found
- `program`: from arguments to an exit status
- `search`: `callyard search` and `callyard eval search`: find tools as an agent does, and measure how well that works
- `serve`: `callyard serve` and `callyard worker`: serve a yard to MCP clients, and run jobs of servers
- `settle`: `callyard settle`, and what `add` and `import` ask: what tools do whose upstreams give no hints
- `store`: `callyard jobs` and `callyard approvals`: what the store of a project shows to whoever may read it
- `targets`: the yard of a command: read its settings, load its target, open it, and run the command in it
- `terminal`: the terminal of a command: data on stdout, notices and progress on stderr, colours only where a person
  reads
- `upstreams`: their state and logs, and their definitions against the accepted ones
- `watch`: probe upstreams again and again, alert, and serve a status page
"""

from callyard.cli.program import main

__all__ = ["main"]
