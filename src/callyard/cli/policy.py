"""`callyard policy explain`: which rule decides about a call, and why."""

from functools import partial
from typing import Any

from callyard.cli.call import read_arguments
from callyard.cli.parser import Options
from callyard.cli.targets import run_in_yard
from callyard.cli.terminal import Painted, Terminal
from callyard.dispatch.call import Caller
from callyard.dispatch.tool import InvalidArgumentsError, Tool
from callyard.launch.errors import LaunchError
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.profile import Profile
from callyard.policy.rules import ALLOWED
from callyard.yard import Yard

__all__ = ["run_policy"]


def run_policy(options: Options, terminal: Terminal) -> int:
    """Print the verdict of a served yard about a call, which is not made."""
    return run_in_yard(options, terminal, partial(_explain, options=options, terminal=terminal), tool=options.name)


async def _explain(yard: Yard, profile: Profile, *, options: Options, terminal: Terminal) -> int:
    yard.ask_before_destroy()
    gate = yard.gate
    assert gate is not None  # noqa: S101 - it asks before destroy
    try:
        tool = yard.registry.find(options.name, profile)
        arguments = _checked(tool, yard, options)
    except ToolError as error:
        raise LaunchError(error.message) from error
    verdict = gate.explain(tool.spec, profile.name, arguments, Caller(identity=options.caller, profile=profile))
    if verdict is None:
        facts: dict[str, Any] = {"decision": "asked", "why": "No rule decides, so the decision point does.", "rule": None}
    else:
        rule = None if verdict.rule is None else str(verdict.rule)
        place = None if verdict is ALLOWED or not verdict.number else verdict.number
        facts = {"decision": verdict.decision, "why": verdict.why, "rule": rule, "number": place}
    if options.json:
        terminal.write_json(encode({"tool": tool.spec.name, "caller": options.caller, "profile": profile.name, **facts}))
        return 0
    terminal.write(Painted(str(facts["decision"]), "bold"), f"  {tool.spec.name}")
    terminal.write(f"Why: {facts['why']}")
    if facts["rule"]:
        place = f"Rule {facts['number']}" if facts.get("number") else "The default of a served yard"
        terminal.write(f"{place}: {facts['rule']}")
    return 0


def _checked(tool: Tool, yard: Yard, options: Options) -> dict[str, Any]:
    """Return the arguments as the tool would get them."""
    given = read_arguments(options.arguments).parse(tool.spec.input_schema)
    text = encode(given)
    try:
        return tool.check(text)
    except InvalidArgumentsError as error:
        return tool.repair(text, error.issues, enabled=yard.limits.repair).arguments
