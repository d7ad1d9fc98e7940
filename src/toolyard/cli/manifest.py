"""`toolyard manifest`: every tool of a yard as one document, the same for the same yard."""

from functools import partial

import msgspec

from toolyard.cli.markdown import tool_reference
from toolyard.cli.opening import work_in_yard
from toolyard.cli.parser import Options
from toolyard.cli.specs import document
from toolyard.cli.terminal import Terminal
from toolyard.envelope import encode
from toolyard.profile import METATOOLS, Profile
from toolyard.yard import Yard

__all__ = ["run"]


def run(options: Options, terminal: Terminal) -> int:
    """Print every tool that exists for the profile, metatools only where they are listed, with the hash of what is listed."""
    return work_in_yard(options, terminal, partial(_manifest, options=options, terminal=terminal))


async def _manifest(yard: Yard, profile: Profile, *, options: Options, terminal: Terminal) -> int:
    listed = {spec.name for spec in yard.list(profile)}
    specs = [spec for spec in yard.registry.visible(profile) if spec.source != METATOOLS or spec.name in listed]
    if options.markdown:
        terminal.write(tool_reference(yard.name, yard.version, specs))
        return 0
    whole = {
        "name": yard.name,
        "version": yard.version,
        "hash": yard.registry.hash(profile),
        "tools": [document(spec) for spec in specs],
    }
    terminal.write_json(msgspec.json.format(encode(whole), indent=2))
    return 0
