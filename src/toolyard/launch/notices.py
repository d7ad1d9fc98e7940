"""Notices: what a server or a command tells a person, as lines on stderr.

Control characters are shown, not sent, so that text from others cannot move the cursor. Data on stdout belongs to the command line.
"""

import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TextIO
from urllib.parse import urlsplit

__all__ = [
    "CONTROL",
    "Line",
    "Notices",
    "Painted",
    "Part",
    "Style",
    "clean",
    "discard",
    "encodable",
    "hint",
    "is_terminal",
    "logging_to",
    "painted",
]

Style = Literal["bold", "faint", "good", "bad"]
_STYLES: Final[dict[Style, str]] = {"bold": "1", "faint": "2", "good": "32", "bad": "31"}
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Painted(NamedTuple):
    """Text in a style, where there are colours."""

    text: str
    style: Style


Part = str | Painted
Line = tuple[Part, ...]


class Notices:
    """Writes notices to stderr; a notice that cannot be written is dropped."""

    def __init__(self) -> None:
        self._err: TextIO | None = sys.stderr
        self.quiet = False
        self.attended = is_terminal(self._err)
        """Whether a person watches stderr."""
        self._smart = os.environ.get("TERM") != "dumb"
        self._wants_colours = self._smart and not os.environ.get("NO_COLOR")
        self._notice_colours = self.attended and self._wants_colours

    def say(self, *parts: Part) -> None:
        """Write a notice to stderr; one that nobody reads fails nothing."""
        self.clear()
        self._notify(painted(parts, colours=self._notice_colours) + "\n")

    def clear(self) -> None:
        """Remove what is shown in place, if there is anything."""

    def _notify(self, text: str) -> None:
        if self._err is None:
            return
        try:
            self._err.write(encodable(text, self._err))
            self._err.flush()
        except OSError:
            discard(self._err)


@contextmanager
def logging_to(notices: Notices, *, verbose: int, quiet: bool) -> Generator[None]:
    """Log to the terminal meanwhile: warnings, with one `verbose` information, with two everything, when `quiet` errors alone."""
    handler = _Lines(notices)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    try:
        yield
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


class _Lines(logging.Handler):
    """Says each record on the terminal, where it does not get between the pieces of a progress line."""

    def __init__(self, notices: Notices) -> None:
        super().__init__()
        self._notices = notices
        self.setFormatter(_Line("%(asctime)s %(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Say the record."""
        try:
            self._notices.say(self.format(record))
        except Exception:  # noqa: BLE001 - a line that cannot be formatted must not fail what it tells of
            self.handleError(record)


class _Line(logging.Formatter):
    """Writes a record as one line, and its traceback, if it has one, below."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - logging's own name
        """Return when it was, in UTC."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the line, with no break inside."""
        return super().formatMessage(record).replace("\n", "\\n")


def hint(name: str, address: str, *, transport: str, command: Sequence[str], keyed: bool, public_url: str | None = None) -> Iterator[Line]:
    """Return where a yard is served and how clients connect; `command` starts the server, `keyed` is whether an API key lets in."""
    known_as = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "yard"
    if transport == "stdio":
        yield (Painted(f"Serving '{name}' over stdio.", "bold"), " It waits for a client on stdin; Ctrl-C ends it.")
        yield ("",)
        yield from _ways(_over_stdio(known_as, command))
    elif address.startswith(("http://", "https://")):
        yield (Painted(f"Serving '{name}' at ", "bold"), Painted(address, "good"), " until Ctrl-C.")
        yield ("",)
        yield from _ways(_over_http(known_as, _reached_at(address, public_url), transport=transport, keyed=keyed))
    else:
        yield (Painted(f"Serving '{name}' at ", "bold"), Painted(address, "good"), " until Ctrl-C.")
        if address.startswith("unix:"):
            yield ("",)
            yield from _ways(_over_socket(known_as, address.removeprefix("unix:"), transport=transport, keyed=keyed, public_url=public_url))


def _ways(ways: dict[str, str]) -> Iterator[Line]:
    width = max(map(len, ways)) + 2
    yield from ((Painted(f"  {client:<{width}}", "faint"), way) for client, way in ways.items())


def _over_stdio(name: str, command: Sequence[str]) -> dict[str, str]:
    program, *arguments = command
    return {
        "Claude Code": f"claude mcp add {name} -- {shlex.join(command)}",
        "Cursor": _written({"mcpServers": {name: {"command": program, "args": arguments}}}),
        "Any MCP client": shlex.join(command),
    }


def _over_http(name: str, address: str, *, transport: str, keyed: bool) -> dict[str, str]:
    kind = "sse" if transport == "sse" else "http"
    header = ' --header "Authorization: Bearer KEY"' if keyed else ""
    headers = {"headers": {"Authorization": "Bearer KEY"}} if keyed else {}
    return {
        "Claude Code": f"claude mcp add --transport {kind} {name} {address}{header}",
        "Cursor": _written({"mcpServers": {name: {"url": address, **headers}}}),
        "Any MCP client": address,
    }


def _over_socket(name: str, path: str, *, transport: str, keyed: bool, public_url: str | None) -> dict[str, str]:
    """Return how a socket is reached: by a proxy, and by clients through that where it is known how they call it."""
    endpoint, look = ("/sse", "/sse") if transport == "sse" else ("/mcp", "/healthz")
    curl = shlex.join(["curl", "--unix-socket", path, f"http://localhost{look}"])
    ways = {"nginx": f"proxy_pass http://unix:{path};", "A look at it": curl}
    if public_url is not None:
        ways |= _over_http(name, public_url.rstrip("/") + endpoint, transport=transport, keyed=keyed)
    return ways


def _reached_at(address: str, public_url: str | None) -> str:
    """Return what a client is given: the address that people know, or one on this machine where all of its are listened on."""
    parts = urlsplit(address)
    if public_url is not None:
        return public_url.rstrip("/") + parts.path
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(parts.hostname or "")  # noqa: S104 - nothing is listened on here
    return address if host is None else f"{parts.scheme}://{host}:{parts.port}{parts.path}"


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def painted(parts: Iterable[Part], *, colours: bool) -> str:
    """Return a line made of the parts, with or without colours."""
    return "".join(_paint(part, colours=colours) for part in parts)


def _paint(part: Part, *, colours: bool) -> str:
    if isinstance(part, str):
        return clean(part)
    text = clean(part.text)
    return f"\x1b[{_STYLES[part.style]}m{text}\x1b[0m" if colours and text else text


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal."""
    return stream is not None and stream.isatty()


def discard(stream: TextIO) -> None:
    """Send what the stream still holds, and all that follows, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def clean(text: str) -> str:
    """Return the text with its control characters shown as people write them."""
    return CONTROL.sub(_shown, text.replace("\r\n", "\n"))


def _shown(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


def encodable(text: str, stream: TextIO) -> str:
    """Return the text with what the encoding of the stream cannot write escaped."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
