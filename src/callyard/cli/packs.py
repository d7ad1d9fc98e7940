"""`callyard packs`: which packs are installed, named and open, here or at a running server, and what is missing."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from callyard._internal.addresses import is_loopback
from callyard._internal.mask import mask_url
from callyard.cli.parser import Options
from callyard.cli.targets import config_from, credentials_of
from callyard.cli.terminal import Painted, Style, Terminal, pad, width_of
from callyard.dispatch.registry import is_allowed
from callyard.launch.build import get_json
from callyard.launch.errors import DEFECT, LaunchError, exit_status
from callyard.launch.mounts import load_token
from callyard.launch.signals import run
from callyard.model.envelope import encode
from callyard.packs.pack_set import PackFacts
from callyard.packs.survey import PackReport, survey

__all__ = ["run_packs"]

_ANSWER_BYTES: Final = 16 * 1024 * 1024
_ENDPOINT: Final = "/mcp"
_OK: Final = 200
_REFUSED: Final = (401, 403)
_TITLES: Final = ("NAME", "STATE", "VERSION", "PACKAGE", "NEEDS")
_STYLES: Final[dict[str, Style]] = {"open": "good", "ready": "good", "failed": "bad"}


def run_packs(options: Options, terminal: Terminal) -> int:
    """List the packs of this environment and of the settings, or those of the server at a URL."""
    is_url = options.target.startswith(("http://", "https://"))
    if options.target and not is_url and not options.target.endswith(".toml"):
        raise LaunchError("Name the URL of a running server, or a 'callyard.toml'. No yard is loaded here.")
    if is_url:
        reports = [_report(facts) for facts in run(_ask(options, terminal))]
    else:
        config = config_from(options, terminal)
        allows_eval = partial(is_allowed, allow_eval=config.settings.allow_eval)
        reports = survey(config.settings.packs, config.pack_tables, allows_eval)
    if options.json:
        terminal.write_json(encode(reports))
    else:
        _write_table(reports, terminal)
    return DEFECT if any(report.state == "failed" for report in reports) else 0


async def _ask(options: Options, terminal: Terminal) -> Sequence[PackFacts]:
    """Return the packs of a running server, from its API.

    Raises:
        LaunchError: It does not answer, or refuses.
    """
    shown = mask_url(options.target)
    parts = urlsplit(options.target)
    url = parts._replace(path=f"{parts.path.rstrip('/').removesuffix(_ENDPOINT)}/api/packs", query="", fragment="")
    try:
        status, body = await get_json(url.geturl(), _headers(options, terminal), limit=_ANSWER_BYTES)
    except OSError as error:
        message = f"The server at '{shown}' does not answer: {error}"
        raise LaunchError(message, status=exit_status("upstream_unavailable")) from None
    if status in _REFUSED:
        why = "Give a key with '--key', or run this in the folder of its project"
        message = f"The server at '{shown}' refuses the credentials. {why}."
        raise LaunchError(message, status=exit_status("unauthenticated"))
    try:
        if status == _OK:
            return msgspec.json.decode(body, type=list[PackFacts])
    except msgspec.DecodeError:
        pass
    raise LaunchError(f"The server at '{shown}' answers {status} and no packs.", status=exit_status("upstream_error"))


def _headers(options: Options, terminal: Terminal) -> dict[str, str]:
    """Return the credentials of the command line, or else the token of the project for a server on this machine."""
    headers = credentials_of(options)
    if headers or not is_loopback(urlsplit(options.target).hostname or ""):
        return headers
    options.target = ""
    return {"Authorization": f"Bearer {load_token(config_from(options, terminal))}"}


def _report(facts: PackFacts) -> PackReport:
    return PackReport(
        name=facts["name"],
        package="",
        version=facts["version"],
        state=facts["state"],
        reason="" if facts["state"] == "open" else "The log of the server says why.",
        programs=facts["programs"],
        eval_targets=facts["eval_targets"],
    )


def _write_table(reports: Sequence[PackReport], terminal: Terminal) -> None:
    rows = [_row(report) for report in reports]
    widths = [max(width_of(row[column]) for row in (_TITLES, *rows)) for column in range(len(_TITLES))]
    if not terminal.interactive:
        for row in rows:
            terminal.write("\t".join(row))
        return
    terminal.write(Painted("  ".join(map(pad, _TITLES, widths)).rstrip(), "bold"))
    for report, (name, state, *rest) in zip(reports, rows, strict=True):
        style = _STYLES.get(report.state)
        shown: Any = pad(state, widths[1]) if style is None else Painted(pad(state, widths[1]), style)
        others = "  ".join(map(pad, rest, widths[2:])).rstrip()
        terminal.write(pad(name, widths[0]), "  ", shown, "  ", others)


def _row(report: PackReport) -> tuple[str, ...]:
    missing = [program["name"] for program in report.programs if not program["found"] and not program["required"]]
    needs = [report.reason] if report.reason else []
    needs += [f"without '{name}' some tools fail" for name in missing]
    gated = [target["name"] for target in report.eval_targets if not target["allowed"]]
    needs += [f"'--allow-eval={name}' lets it run code" for name in gated]
    return (report.name, report.state, report.version or "-", report.package or "-", "; ".join(needs) or "-")
