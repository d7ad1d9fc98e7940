"""The report of one probe: its steps with their times, its failures and warnings; also as JUnit."""

from typing import Any, Final
from xml.sax.saxutils import quoteattr

import msgspec

from callyard.probe.codes import PROBE_CODES, ProbeCodeName
from callyard.providers.upstream.scan import visible
from callyard.providers.upstream.verdict import Change, Verdict

__all__ = ["Failure", "Report", "Step", "shown", "to_junit"]

_MESSAGE_CHARACTERS: Final = 500


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failure: its step, its code, a sentence, and the tool if it is about one."""

    step: str
    code: ProbeCodeName
    message: str
    tool: str = ""
    detail: str = ""
    """What only the operator may read, such as lines on stderr."""


class Step(msgspec.Struct, frozen=True):
    """One step that was taken, how long it took in milliseconds, and what was found."""

    name: str
    ms: float
    note: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe of a target found."""

    target: str
    at: float
    """When it began, in seconds of the wall clock."""
    ms: float
    steps: tuple[Step, ...] = ()
    failures: tuple[Failure, ...] = ()
    """In the order of the steps; the first one decides the exit status."""
    warnings: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    """How the definitions of tools differ from the accepted ones."""
    verdict: Verdict | None = None
    """The worst verdict of the changes."""
    server: str = ""
    version: str = ""
    """The version of the protocol."""
    tools: int | None = None
    certificate_days: float | None = None
    token_days: float | None = None
    """Days until the certificate or the credentials end, where that is known."""
    retry_after: float | None = None
    """Seconds that the server asked to wait."""

    @property
    def code(self) -> ProbeCodeName | None:
        """Return the code of the first failure, or None if the target is well."""
        return self.failures[0].code if self.failures else None

    @property
    def exit_status(self) -> int:
        """Return the exit status of a command that shows this report."""
        return 0 if self.code is None else PROBE_CODES[self.code].exit

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON, with its code and exit status."""
        return {"ok": self.code is None, "code": self.code, "exit": self.exit_status, **msgspec.structs.asdict(self)}


def shown(text: str) -> str:
    """Return a text of a server for people: one line, bounded, and without control characters."""
    return visible(" ".join(text.split()))[:_MESSAGE_CHARACTERS]


def to_junit(reports: list[Report]) -> str:
    """Return reports as JUnit XML: a suite for each target, and a test for each of its steps."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for report in reports:
        steps = [step.name for step in report.steps]
        facts = f"tests={_quoted(len(steps))} failures={_quoted(len({one.step for one in report.failures}))}"
        lines.append(f"  <testsuite name={_quoted(report.target)} {facts} time={_quoted(f'{report.ms / 1000:.3f}')}>")
        for step in report.steps:
            case = f"    <testcase classname={_quoted(report.target)} name={_quoted(step.name)}"
            failures = [one for one in report.failures if one.step == step.name]
            lines.append(f"{case} time={_quoted(f'{step.ms / 1000:.3f}')}{'>' if failures else '/>'}")
            lines += [f"      <failure type={_quoted(one.code)} message={_quoted(one.message)}/>" for one in failures]
            lines += ["    </testcase>"] * bool(failures)
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>"])


def _quoted(value: object) -> str:
    text = "".join(letter if letter.isprintable() else "�" for letter in shown(str(value)))
    return quoteattr(text)
