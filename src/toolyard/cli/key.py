"""`toolyard key`: a new API key, shown once, and what is kept of it."""

import json

from toolyard.cli.exits import CommandError
from toolyard.cli.parser import Options
from toolyard.cli.terminal import Painted, Terminal
from toolyard.envelope import encode
from toolyard.transports.auth import ApiKey, digest_of, new_key

__all__ = ["run"]


def run(options: Options, terminal: Terminal) -> int:
    """Print the key to stdout, and on stderr the line that lets it in."""
    key = new_key()
    try:
        kept = ApiKey(options.name, digest_of(key), options.profile)
    except ValueError as error:
        raise CommandError(str(error)) from error
    line = _line(kept)
    if options.json:
        facts = {"key": key, "name": kept.name, "digest": kept.digest, "profile": kept.profile, "line": line}
        terminal.write_json(encode(facts))
        return 0
    terminal.write(key)
    terminal.say("The key is shown this once. A client sends it as 'Authorization: Bearer KEY'.")
    terminal.say("This lets it in; where there are keys already, what is in braces joins them in 'toolyard.toml':")
    terminal.say("")
    terminal.say("[auth]")
    terminal.say(Painted(line, "bold"))
    return 0


def _line(kept: ApiKey) -> str:
    facts = {"name": kept.name, "digest": kept.digest, **({} if kept.profile is None else {"profile": kept.profile})}
    pairs = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items())
    return f"api_keys = [{{{pairs}}}]"
