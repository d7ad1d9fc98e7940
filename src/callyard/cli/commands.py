"""The commands of the command line, each with its arguments and options, as a table.

It parses nothing and imports no command.
"""

from argparse import SUPPRESS, ArgumentTypeError, BooleanOptionalAction
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

__all__ = ["ALLOW_EVAL", "ARGUMENTS", "COMMANDS", "SETTING", "TAKE_PROGRAM", "VOLUME", "Argument", "Command"]

_MAX_LIMIT: Final = 100


class Argument(NamedTuple):
    """An argument or an option of a command, as argparse takes it."""

    names: Sequence[str]
    settings: Mapping[str, Any]


class Command(NamedTuple):
    """The module that runs a command, and what it does."""

    module: str
    text: str


def _value(name: str, metavar: str, text: str, **settings: Any) -> Argument:
    return Argument((name,), {"metavar": metavar, "help": text, **settings})


def _optional(name: str, metavar: str, text: str, default: str = "", **settings: Any) -> Argument:
    return _value(name, metavar, text, nargs="?", default=default, **settings)


def _switch(*names: str, text: str) -> Argument:
    return Argument(names, {"action": "store_true", "help": text})


def _repeated(name: str, metavar: str, text: str, **settings: Any) -> Argument:
    return _value(name, metavar, f"{text}; can be repeated", action="append", **settings)


def _json(text: str = "print an object") -> Argument:
    return _switch("--json", text=text)


def _setting(key: str, metavar: str, *, flag: str = "") -> Argument:
    """Return the flag of a setting; without a name for its value it is a switch."""
    name = "agents" if key == "agents.enabled" else key.removeprefix("serve.").removeprefix("monitor.")
    kind: dict[str, Any] = {"metavar": metavar} if metavar else {"action": BooleanOptionalAction}
    name = flag or f"--{name.replace('.', '-').replace('_', '-')}"
    # argparse shows no option without a help; the description is read when it is shown, which takes long
    return Argument((name,), {"dest": f"{SETTING}{key}", "default": SUPPRESS, "help": key, **kind})


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not a number of lines.")
    return int(text)


def _limit(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_LIMIT:
        raise ArgumentTypeError(f"'{text}' is not a number from 1 to {_MAX_LIMIT}")
    return int(text)


_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _seconds(text: str) -> float:
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise ArgumentTypeError(f"'{text}' is not a time such as '90s', '30m', '1h' or '2d'.")
    return seconds


SETTING: Final = "setting "
"""What the names of settings begin with in the namespace of argparse."""
_FLAGS: Final[Mapping[str, str]] = {
    "serve.transport": "NAME",
    "serve.host": "ADDRESS",
    "serve.port": "PORT",
    "serve.socket": "PATH",
    "serve.stateless": "",
    "serve.json_response": "",
    "serve.session_timeout": "SECONDS",
    "serve.tls": "",
    "serve.tls_cert": "FILE",
    "serve.tls_key": "FILE",
    "serve.workers": "NUMBER",
    "serve.reload": "",
    "serve.console": "",
    "store": "STORE",
    "monitor.metrics": "",
    "monitor.otel": "",
    "monitor.audit_log": "FILE",
    "monitor.access_log": "FILE",
    "agents.enabled": "",
    "agents.runtime": "NAME",
    "agents.model": "NAME",
    "agents.permission_mode": "MODE",
    "agents.roots": "FOLDERS",
    "profile": "NAME",
    "allow_eval": "",
    "runtime.enabled": "",
    "runtime.profile": "NAME",
    "runtime.backend": "NAME",
    "runtime.order": "NAMES",
    "runtime.wasm_enabled": "",
    "runtime.wasm_path": "FILE",
    "runtime.wasm_sha256": "DIGEST",
    "runtime.allow_unsafe": "",
    "runtime.concurrency": "NUMBER",
}
"""The settings with a flag of `callyard serve`: what its value is called, empty for a switch."""
_WORKER_FLAGS: Final = frozenset({"store", "monitor.audit_log", "profile", "allow_eval"})

_YARD: Final = "the yard: 'module:attr', 'file.py', 'file.py:attr', a 'callyard.toml', a client's 'file.json', or a URL"
_YARD_BY_DEFAULT: Final = f"{_YARD} (default: the 'target' of 'callyard.toml')"
_CLIENTS: Final = "'claude-code', 'claude-desktop', 'cursor', 'vscode', 'codex', 'gemini' and so on"
_CHANGED_FILE: Final = "the file to change (default: 'callyard.toml', which is created if it does not exist)"
_OPERATIONS: Final = ("query", "command", "destroy", "eval")
_SETTLED: Final = _OPERATIONS[:3]
_POLICY_ACTIONS: Final = ("explain", "check")
_JOB_ACTIONS: Final = ("list", "show", "wait", "cancel")
_APPROVAL_ACTIONS: Final = ("list", "show", "approve", "deny", "grants", "revoke")

_LEVELS: Final = "log more to stderr: once information, twice everything"
VOLUME: Final = (
    Argument(("-v", "--verbose"), {"action": "count", "help": _LEVELS}),
    _switch("-q", "--quiet", text="write nothing to stderr but errors"),
)
_CONFIG: Final = _value("--config", "FILE", "the file to read settings from (default: 'callyard.toml', if it exists)")
_PROJECT: Final = _value(
    "--config",
    "FILE",
    "the project of the upstream: a 'callyard.toml' (default: the one here), a client's 'file.json' or a URL",
)
_JSON_ARRAY: Final = _json("print an array of objects")
_JSON_ENVELOPE: Final = _json("print the envelope as one line of JSON")
ALLOW_EVAL: Final = "--allow-eval"
"""A switch that may have a value after '=', which argparse does not know: `--allow-eval=TARGETS`."""
_VIEW: Final = (
    _CONFIG,
    _value("--profile", "NAME", "show the yard as callers of this profile see it (default: the yard's own)"),
    _switch(ALLOW_EVAL, text="publish the tools that run code; '--allow-eval=TARGETS' those that run it there"),
)
_CREDENTIALS: Final = (
    _value(
        "--key",
        "KEY",
        "the API key for the server at a URL (default: CALLYARD_KEY, or what 'callyard login' stored for it)",
    ),
    _repeated("--header", "NAME:VALUE", "a header for the server at a URL"),
)
_TARGET: Final = (_optional("target", "TARGET", _YARD_BY_DEFAULT), *_CREDENTIALS)
_SETTINGS: Final = (*_TARGET, _CONFIG, *(_setting(key, metavar) for key, metavar in _FLAGS.items()))
_WAIT: Final = _switch("--wait", text="wait until every upstream has answered or failed")
_UPSTREAM: Final = _value("name", "NAME", "the upstream")
_LOGIN: Final = (_value("name", "NAME", "the upstream, or its URL"), _PROJECT)
_DEFINITIONS: Final = (_optional("name", "NAME", "the upstream (default: all)"), _PROJECT, _JSON_ARRAY)
_TIMEOUT: Final = _value("--timeout", "SECONDS", "how long to wait (default: 300)", type=_seconds)
_PAIRS: Final = _value(
    "arguments", "ARGUMENT", "'key=value' for each, or one JSON object, or '-' for JSON from stdin", nargs="*"
)
_SECRETS: Final = _value(
    "--secrets",
    "WHERE",
    "where secrets go: 'file' (default) is a private file for each, 'env' a variable that you set, 'keep' leaves "
    "them as they are",
    choices=("file", "env", "keep"),
)
_DRY_RUN: Final = _switch("--dry-run", text="show what would be written, and write nothing")

COMMANDS: Final[Mapping[str, Command]] = {
    "demo": Command("demo", "show what an agent sees of a yard with hundreds of tools"),
    "serve": Command("serve", "serve a yard to MCP clients, over stdio or HTTP"),
    "worker": Command("serve", "run jobs of servers that share a Redis"),
    "config": Command("config", "print every setting with its value and origin"),
    "key": Command("config", "create an API key and print its line for 'callyard.toml'"),
    "upstreams": Command("upstreams", "list the upstreams: state, number of tools and last error"),
    "packs": Command("packs", "list the packs: which are installed, named and open, and what is missing"),
    "probe": Command("probe", "check an MCP server once, as a client sees it: each failure has an exit status"),
    "watch": Command("watch", "probe upstreams again and again, alert once for each incident, and serve a status page"),
    "doctor": Command("doctor", "check what a server with these settings needs, and say how to mend it"),
    "restart": Command("upstreams", "restart an upstream of a running yard"),
    "logs": Command("upstreams", "print what a program that is an upstream wrote to stderr"),
    "login": Command("login", "sign in at an upstream, in a browser"),
    "logout": Command("login", "revoke and delete a login at an upstream"),
    "list": Command("inspect", "list the tools of a yard"),
    "call": Command("call", "call a tool and print its answer"),
    "code": Command("call", "run a program that calls the tools of a yard"),
    "runtime": Command("call", "show, probe or build what runs programs"),
    "jobs": Command("store", "list, show, wait for or cancel calls in the background"),
    "approvals": Command("store", "list, show, approve or deny calls that wait for a person"),
    "policy": Command("inspect", "explain which rule decides about a call, or check the rules"),
    "disable": Command("store", "disable tools, an upstream, a pack or an API of running servers, or list what is"),
    "enable": Command("store", "enable what was disabled"),
    "describe": Command("inspect", "describe a tool: arguments, behaviour and answer"),
    "manifest": Command("inspect", "print every tool of a yard, as JSON or Markdown"),
    "search": Command("search", "find tools of a yard by what they do"),
    "eval": Command("search", "measure how well search finds the right tools"),
    "diff": Command("upstreams", "show how the definitions of upstreams differ from the accepted ones"),
    "accept": Command("upstreams", "accept the current definitions of an upstream"),
    "settle": Command("settle", "say what tools of upstreams do that have no hints, at a terminal"),
    "scan": Command("upstreams", "look for hidden characters and instructions to a model in definitions of upstreams"),
    "import": Command("clients", "add the servers of MCP clients to 'callyard.toml'"),
    "connect": Command("clients", "write Callyard into the configuration of an MCP client"),
    "add": Command("config", "add an upstream or an API to 'callyard.toml'"),
    "remove": Command("config", "remove an upstream from 'callyard.toml'"),
    "version": Command("program", "print the version of Callyard"),
}
TAKE_PROGRAM: Final = frozenset({"add", "probe"})
"""The commands after which a program and its arguments may follow '--'."""
ARGUMENTS: Final[Mapping[str, Sequence[Argument]]] = {
    "serve": _SETTINGS,
    "worker": (
        *_TARGET,
        _CONFIG,
        *(
            _setting(key, metavar)
            for key, metavar in _FLAGS.items()
            if key in _WORKER_FLAGS or key.startswith("runtime.")
        ),
    ),
    "config": (*_SETTINGS, _json()),
    "doctor": (*_SETTINGS, _json("print an object with the findings")),
    "key": (
        _value("name", "NAME", "the owner of the key, as one word"),
        _value("--profile", "NAME", "the profile of its owner (default: that of the yard)"),
        _json(),
    ),
    "upstreams": (
        *_TARGET,
        _switch("--check", text="start or call each of them now, for at most 5 seconds"),
        _WAIT,
        _JSON_ARRAY,
    ),
    "packs": (
        _optional("target", "URL", "a running server; without it, the packs that the settings name"),
        *_CREDENTIALS,
        _CONFIG,
        _JSON_ARRAY,
    ),
    "probe": (
        _optional(
            "target",
            "TARGET",
            "an upstream, a URL, a 'callyard.toml', a client's 'file.json' or a yard; '-- COMMAND' is a program "
            "(default: all upstreams of 'callyard.toml')",
        ),
        *_CREDENTIALS,
        _CONFIG,
        _value("--pin", "FILE", "the lock file with the accepted definitions (default: that of the project)"),
        _value("--seconds", "SECONDS", "how long one probe may take (default: 30)", type=_seconds),
        _value("--junit", "FILE", "write the reports to this file as JUnit XML, too"),
        _JSON_ARRAY,
    ),
    "watch": (
        _optional("target", "FILE", "the 'callyard.toml' with the upstreams (default: the one here)"),
        _CONFIG,
        *(_setting(key, _FLAGS[key]) for key in ("serve.host", "serve.port", "store")),
        _value("--silence", "PATTERN", "alert nobody of incidents such as 'down/orders' or '*/orders', and exit"),
        _value("--for", "TIME", "how long, such as '30m', '1h' or '2d'", type=_seconds, dest="seconds"),
        _value("--reason", "TEXT", "why"),
    ),
    "restart": (_UPSTREAM, _PROJECT),
    "logs": (
        _UPSTREAM,
        _PROJECT,
        _switch("-f", "--follow", text="print further lines as they come, until interrupted"),
        Argument(
            ("-n", "--lines"),
            {"metavar": "NUMBER", "type": _number, "help": "the number of last lines to print (default: 100)"},
        ),
    ),
    "login": (*_LOGIN, _switch("--no-browser", text="print the URL and do not open a browser"), _TIMEOUT),
    "logout": _LOGIN,
    "list": (*_TARGET, _WAIT, *_VIEW, _JSON_ARRAY),
    "call": (
        _value("target", "TARGET", _YARD),
        _value("name", "NAME", "the tool to call"),
        _PAIRS,
        *_CREDENTIALS,
        _value("--session", "ID", "the session of the call"),
        _switch("--background", text="start a job at the server of a URL, and print its id"),
        _WAIT,
        *_VIEW,
        _value("--output", "DIR", "write images and other content blocks to files in this folder"),
        _JSON_ENVELOPE,
    ),
    "code": (
        _value("file", "FILE", "the program, or '-' for stdin"),
        *_TARGET,
        *_VIEW,
        *(_setting(key, _FLAGS[key]) for key in ("runtime.profile", "runtime.backend", "runtime.allow_unsafe")),
        _JSON_ENVELOPE,
    ),
    "runtime": (
        _value(
            "name",
            "ACTION",
            "'list' shows what can run programs here, 'probe' attacks each backend, 'build' makes the image of "
            "containers",
            choices=("list", "probe", "build"),
        ),
        _CONFIG,
        _JSON_ARRAY,
    ),
    "jobs": (
        _optional("action", "ACTION", "'list' (default), 'show', 'wait' or 'cancel'", "list", choices=_JOB_ACTIONS),
        _optional("name", "JOB", "the id of the job"),
        _value("--limit", "NUMBER", "the most jobs to list (default: 50)", type=_limit, dest="jobs"),
        _TIMEOUT,
        _CONFIG,
        _json("print JSON"),
    ),
    "approvals": (
        _optional(
            "action",
            "ACTION",
            "'list' (default), 'show', 'approve' or 'deny' for approvals; 'grants' or 'revoke' for grants",
            "list",
            choices=_APPROVAL_ACTIONS,
        ),
        _optional("name", "ID", "the id of the approval, or of the grant to revoke"),
        _value("--reason", "TEXT", "why; the agent gets the reason of a denial"),
        _value(
            "--grant",
            "SECONDS",
            "approve the same call of the same caller for so long, without asking again",
            type=_seconds,
        ),
        _switch("--any-arguments", text="with '--grant': whatever the arguments are"),
        _switch("--watch", text="print further approvals as they come, until interrupted"),
        _CONFIG,
        _json("print JSON, with '--watch' one line for each"),
    ),
    "disable": (
        _optional("name", "NAME", "a tool, an upstream, a pack or an API, or a pattern; without it, what is disabled"),
        _value(
            "--for",
            "TIME",
            "how long, such as '30m', '1h' or '2d' (default: until enabled)",
            type=_seconds,
            dest="seconds",
        ),
        _value("--reason", "TEXT", "why; callers get it"),
        _CONFIG,
        _json("print JSON"),
    ),
    "enable": (
        _value("name", "NAME", "the name or pattern as it was disabled"),
        _CONFIG,
        _json(),
    ),
    "policy": (
        _value(
            "action",
            "ACTION",
            "'explain' shows which rule decides about a call, and why; 'check' names rules that match no known tool",
            choices=_POLICY_ACTIONS,
        ),
        _optional("name", "TOOL", "the tool, for 'explain'"),
        _PAIRS,
        _value("--target", "TARGET", _YARD_BY_DEFAULT),
        *_CREDENTIALS,
        _value("--caller", "NAME", "the identity of the caller (default: 'local')"),
        *_VIEW,
        _json(),
    ),
    "describe": (
        _value("target", "TARGET", _YARD),
        _value("name", "NAME", "the tool to describe"),
        *_CREDENTIALS,
        _WAIT,
        *_VIEW,
        _json("print the whole spec as one line of JSON"),
    ),
    "manifest": (
        *_TARGET,
        _WAIT,
        *_VIEW,
        _json("print JSON (default)"),
        _switch("--markdown", text="print a tool reference in Markdown"),
    ),
    "search": (
        _value("words", "WORDS", "what the tool should do, in quotes if there are several words"),
        *_TARGET,
        _WAIT,
        _value("--namespace", "NAME", "only tools of this namespace"),
        _value("--operation", "NAME", f"only tools of this operation: {', '.join(_OPERATIONS)}", choices=_OPERATIONS),
        _value("--limit", "NUMBER", "the number of tools, from 1 to 100 (default: 5)", type=_limit),
        *_VIEW,
        _json(),
    ),
    "eval": (
        _value("name", "WHAT", "what to measure: 'search'", choices=["search"]),
        _value("--tools", "FILE", "the tools, one JSON object a line", required=True),
        _value("--queries", "FILE", "the queries and their relevant tools, one JSON object a line", required=True),
        _switch("--split", text="search the clauses of each query as several queries"),
        _switch("--replay", text="ask again in order, learning from the relevant tools, and print that too"),
        _setting("search.strategy", "NAME", flag="--strategy"),
        _CONFIG,
        _json(),
    ),
    "diff": _DEFINITIONS,
    "accept": (
        _UPSTREAM,
        _value("arguments", "TOOL", "what to accept: a tool, a prompt, a URI or 'instructions'", nargs="*"),
        _switch("--all", text="accept everything that differs, including what is no longer offered"),
        _value(
            "--seen",
            "DIGEST",
            "accept only if the differences are still those that 'callyard diff' showed with this digest",
        ),
        _PROJECT,
        _JSON_ARRAY,
    ),
    "settle": (
        _optional("name", "NAME", "the upstream (default: all)"),
        _value("arguments", "TOOL", "only these tools, by the upstream's own names (default: all)", nargs="*"),
        _value(
            "--as",
            "OPERATION",
            f"what they do: {', '.join(map(repr, _SETTLED))} (default: what their names suggest)",
            choices=_SETTLED,
            dest="settled_as",
        ),
        _PROJECT,
        _json("print an array of objects, and settle nothing"),
    ),
    "scan": _DEFINITIONS,
    "import": (
        _value("arguments", "NAME", "only servers with these names (default: all)", nargs="*"),
        _repeated("--from", "CLIENT", f"only servers of this client: {_CLIENTS}", dest="clients"),
        _value("--file", "PATH", "read this file instead of the clients' usual ones"),
        _value("--to", "FILE", _CHANGED_FILE, dest="config"),
        _SECRETS,
        _DRY_RUN,
        _json(),
    ),
    "connect": (
        _value("client", "CLIENT", f"the client: {_CLIENTS}"),
        _optional("target", "TARGET", "the TARGET of 'callyard serve' (default: 'callyard.toml')"),
        _value("--url", "URL", "let the client call a running server at this URL instead of starting one"),
        _value("--name", "NAME", "the name of the server in the client (default: 'callyard')", dest="server_name"),
        *_CREDENTIALS,
        _switch("--project", text="change the client's file of this folder instead of the user's"),
        _switch("--undo", text="undo the last change of 'connect'"),
        _DRY_RUN,
    ),
    "add": (
        _value("name", "NAME", "the name of the upstream or API: lower-case letters, digits, '-' and '_'"),
        _value("--url", "URL", "the URL of a running server, or of an API; without it, a command follows '--'"),
        _value("--openapi", "DOCUMENT", "the document of an HTTP API in OpenAPI or Swagger: a file or a URL"),
        _repeated("--env", "NAME=VALUE", "an environment variable for the command"),
        _repeated("--header", "NAME:VALUE", "a header for the URL"),
        _SECRETS,
        _value("--config", "FILE", _CHANGED_FILE),
    ),
    "remove": (_UPSTREAM, _value("--config", "FILE", "the file to change (default: 'callyard.toml')")),
    "version": (_json("print an object that has the version of Python as well"),),
}
