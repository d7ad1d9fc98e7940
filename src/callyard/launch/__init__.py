"""From settings to a running server.

Its files:

- `advice`: what a server says about its rules and upstreams once they are known: what a person should correct or
  settle
- `agents`: the manager, its runtime and its HTTP API, as the section `[agents]` says
- `alerts`: the rules, incidents and notifiers of a served yard, as the section `[alerts]` says
- `build`: from settings to a yard: reads settings and applies them to a yard that is not open yet
- `doctor`: checks what a server with some settings needs, and says how to mend each fault
- `errors`: failures to launch: the error and its exit status, and explanations that name the file and line of the
  cause
- `hangup`: SIGHUP while a server starts: it asks for a reload, so it must not end a server that cannot reload yet
- `hint`: what a server says once it listens: the hint for a person at a terminal, and where its console is
- `job_worker`: runs jobs of servers in a yard of this process, until a signal ends it
- `monitor`: the monitor of a served yard: its metrics, its log files, and the mounts '/metrics' and '/console'
- `mounts`: what a server has beside '/mcp', and who may use it: the page '/metrics', and the token of console and
  agents
- `notices`: lines for people, and log lines, on stderr
- `probe`: from settings to the targets of probes
- `proxy`: what a client sees at the public URL of a server
- `reload`: reloads what changed on disk: the settings of an open yard, or the whole server
- `serve`: from settings to a transport that runs until a signal ends it
- `signals`: runs a coroutine and cancels it on SIGTERM, as Ctrl-C does, so that it closes what it opened
- `watch`: serves a watch: targets, incidents, notifiers, and the pages that show them
- `workers`: worker processes that serve one address; each is restarted when it dies
"""

__all__: list[str] = []
