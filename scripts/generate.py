"""Generates pages of docs/reference from the code; `--check` only reports which of them are stale."""

import contextlib
import inspect
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from command_page import command_line

from callyard import CODES, Limits, __version__
from callyard.cli import main as callyard_command
from callyard.cli.parser import make_parsers
from callyard.config import Authentication, Key, Setting, Settings, known_settings
from callyard.config.probes import Canary, ProbeTable
from callyard.config.read import ProfileTable
from callyard.config.settings import (
    PREFIX,
    AgentSettings,
    AlertSettings,
    ApprovalSettings,
    MonitorSettings,
    PolicySettings,
    Serving,
    WatchSettings,
    meanings,
)
from callyard.launch.doctor import FINDINGS
from callyard.model.profile import Toolset
from callyard.packs.documents import llms_text
from callyard.policy.settings import BudgetSettings, Predicate, QueueSettings, RateSettings, Rule
from callyard.providers.openapi.settings import ApiSettings, Override
from callyard.providers.upstream.scan import ALL_RULES
from callyard.providers.upstream.settings import Identity, Login, Reshape, UpstreamSettings
from callyard.runtimes.runtime import RuntimeSettings
from callyard.search.settings import SearchSettings

ROOT: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = ROOT / "docs" / "reference"
SECTIONS: Final[dict[str, type]] = {
    "": Settings,
    "serve": Serving,
    "limits": Limits,
    "search": SearchSettings,
    "runtime": RuntimeSettings,
    "queue": QueueSettings,
    "rates": RateSettings,
    "budgets": BudgetSettings,
    "auth": Authentication,
    "monitor": MonitorSettings,
    "alerts": AlertSettings,
    "agents": AgentSettings,
    "approvals": ApprovalSettings,
    "policy": PolicySettings,
    "watch": WatchSettings,
}
TABLES: Final[dict[str, tuple[type[msgspec.Struct], str]]] = {
    "upstreams": (UpstreamSettings, "Other MCP servers whose tools are published, by name."),
    "apis": (ApiSettings, "HTTP APIs whose operations are published, by name."),
    "profiles": (ProfileTable, "Which tools exist for a caller, by name of the profile."),
    "toolsets": (Toolset, "Named subsets of tools, for profiles."),
    "probe": (ProbeTable, "What probes check at an upstream, by its name."),
}
NOTE: Final = "<!-- Written by scripts/generate.py; change the code, then run `make generate`. -->"


def codes() -> str:
    """Return the page of codes."""
    rows = [
        f"| `{code.name}` | {code.meaning} | {code.http} | {code.exit} | {_yes_or_no(code.retryable)} | "
        f"{_yes_or_no(code.recoverable)} "
        f"| {code.blame} | {code.may_have_run} | {code.hint} |"
        for code in CODES.values()
    ]
    return _page(
        "Codes",
        "Every failure has one code of this closed set. None is ever removed. *http* is the nearest status of "
        "HTTP, *exit* the exit",
        "status of the command line. *retry* says that the same call may succeed later; `retryable` of an "
        "answer is true only if nothing",
        "may have run, or if running twice does no harm. *recoverable* says that other arguments or another "
        "tool can still reach the",
        "goal. *ran* says whether something may have happened already; where it is `maybe`, `may_have_run` of "
        "the answer says it. A",
        "tool's own failures use one of these codes and a reason: see [Fail well](../guides/fail-well.md). Your "
        "tools may use any code.",
        "",
        "| code | fires when | http | exit | retry | recoverable | blame | ran | hint, unless the failure "
        "brings its own |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
    )


def settings() -> str:
    """Return the page of settings."""
    return _page(
        "Settings",
        "Every setting has a key in `callyard.toml` and an environment variable, and some have a flag of "
        "`callyard serve`. A flag",
        "overrides the variable, the variable overrides the file, and the file overrides the default. `callyard "
        "config` prints them all.",
        "See [Configuration](../guides/configuration.md); with [a JSON Schema](callyard.schema.json) editors "
        "complete the file.",
        "",
        "An empty variable sets nothing. In variables, true and false are `1`, `true`, `yes`, `on` and `0`, "
        "`false`, `no`, `off`; items of",
        "lists are separated by commas; tables and lists of tables are JSON, such as `api_keys`, `profiles` and "
        "`tools` of `[queue]`.",
        "",
        "## Top level",
        "",
        *(f"- `{key}`, `{setting.variable}`{_flag(setting)}: {meaning}" for key, setting, meaning in _section("")),
        "",
        "## `[serve]`",
        "",
        "How a yard is served: the fields of `Serving`.",
        "",
        *_table("serve"),
        "",
        "## `[limits]`",
        "",
        "The limits of calls: the fields of `Limits`, which a yard can also have from code: "
        "`Yard(limits=Limits(timeout=30))`. A variable",
        "is named after its limit, such as `CALLYARD_LIMIT_TIMEOUT`. An unknown or negative limit is refused. "
        "The tool `get_settings` of",
        "the system pack returns the limits in effect.",
        "",
        "| setting | default | means |",
        "|---|---|---|",
        *(
            f"| `{setting.name}` | {_shown(setting.name, setting.default)} | {meaning} |"
            for _, setting, meaning in _section("limits")
        ),
        "",
        "## `[search]`",
        "",
        "How tools are found: the fields of `SearchSettings`, which a yard can also have from code. See "
        "[Search](../guides/search.md).",
        "",
        *_table("search"),
        "",
        "## `[runtime]`",
        "",
        "Where programs of agents run: the fields of `RuntimeSettings`, which a yard can also have from code. See",
        "[Let agents write programs](../guides/code.md). The flags of `callyard serve` for them begin with "
        "`--runtime-`.",
        "",
        *_table("runtime"),
        "",
        "## `[queue]`",
        "",
        "How many calls run and wait in one process: the fields of `QueueSettings`. See [Limit "
        "calls](../guides/limits.md#the-queue).",
        "",
        *_table("queue"),
        "",
        "## `[rates]`",
        "",
        "How often calls may come: the fields of `RateSettings`. See [Limit calls](../guides/limits.md#rates).",
        "",
        *_table("rates"),
        "",
        "## `[budgets]`",
        "",
        "How many calls and tokens there are in a period: the fields of `BudgetSettings`. See [Limit "
        "calls](../guides/limits.md#budgets).",
        "",
        *_table("budgets"),
        "",
        "## `[auth]`",
        "",
        "Authentication over HTTP. `api_keys` is a list of tables with `name`, `digest` and optional `profile`, "
        "`profiles` and `operator`:",
        "see [Ask callers who they are](../guides/authentication.md).",
        "",
        *_table("auth"),
        "",
        "## `[monitor]`",
        "",
        "Metrics and log files of a server: see [Monitor a server](../guides/monitoring.md). `metrics_keys` is "
        "a list of tables with",
        "`name` and `digest`.",
        "",
        *_table("monitor"),
        "",
        "## `[alerts]`",
        "",
        "What counts as an incident, and who is notified of it: see "
        "[Monitor a server](../guides/monitoring.md#incidents).",
        "",
        *_table("alerts"),
        "",
        "## `[agents]`",
        "",
        "Agents that the server runs with its tools: see [Run agents](../guides/agents.md). The flags of "
        "`callyard serve` for them begin",
        "with `--agents-`; `--agents` alone is `enabled`.",
        "",
        *_table("agents"),
        "",
        "## `[approvals]`",
        "",
        "Who decides about approvals, and who is told of them: see [Rules and approvals](../guides/approvals.md).",
        "",
        *_table("approvals"),
        "",
        "## `[policy]`",
        "",
        "A service that decides about calls: see [Rules and approvals](../guides/approvals.md#a-decision-point).",
        "",
        *_table("policy"),
        "",
        "## `[upstreams.NAME]`",
        "",
        "Other MCP servers whose tools are published: see "
        "[Configuration](../guides/configuration.md#upstreams). These tables, and those",
        "below, have no variables and no flags. `[upstream_defaults]` takes the same keys but `command` and "
        "`url`, for all of them.",
        "",
        *_fields(UpstreamSettings),
        "",
        "## `[upstreams.NAME.reshape.TOOL]`",
        "",
        *_fields(Reshape),
        "",
        "## `[upstreams.NAME.login]`",
        "",
        *_fields(Login),
        "",
        "## `[upstreams.NAME.login.identity]`",
        "",
        "The identity provider of cross-app access: see [Sign in at upstreams](../guides/login.md). It needs an "
        "`issuer`, which is its",
        "URL, and a `client_id`, which is the client that is registered there for Callyard.",
        "",
        *_fields(Identity),
        "",
        "## `[apis.NAME]`",
        "",
        "HTTP APIs whose operations are published: see [Publish an HTTP API](../guides/openapi.md). Each needs a "
        "`document`, a file or a",
        "URL. A name must not be that of an upstream. `[apis.NAME.login]` has the keys of `[upstreams.NAME.login]`.",
        "",
        *_fields(ApiSettings),
        "",
        "## `[apis.NAME.overrides.PATTERN]`",
        "",
        *_fields(Override),
        "",
        "## `[pack.NAME]`",
        "",
        "The configuration of a pack that `packs` names: see [Packs](../guides/packs.md#configure-a-pack). Each pack "
        "has keys of its own.",
        "Every pack has the table `secrets`, with secrets by name. The key `packs` is the list of packs, so there is "
        "no `[packs.NAME]`.",
        "",
        "## `[watch]`",
        "",
        "What `callyard watch` does: see [Watch servers](../guides/watch.md).",
        "",
        *_table("watch"),
        "",
        "## `[probe.NAME]`",
        "",
        "What `callyard probe` and `callyard watch` check at an upstream: see [Probe a server](../guides/probe.md).",
        "",
        *_fields(ProbeTable),
        "",
        "## `[[probe.NAME.canaries]]`",
        "",
        *_fields(Canary),
        "",
        "## `[profiles.NAME]`",
        "",
        *_fields(ProfileTable),
        "",
        "## `[toolsets.NAME]`",
        "",
        "The fields of `Toolset`: see [Profiles](../guides/profiles.md#toolsets).",
        "",
        *_fields(Toolset),
        "",
        "## `[[rules]]` and `[[profiles.NAME.rules]]`",
        "",
        "The fields of `Rule`: see [Rules and approvals](../guides/approvals.md). Each rule needs a `decision`: "
        "`allow`, `ask` or `deny`.",
        "`when` is a list of tables with a `pointer` and one of `equals`, `in`, `less_than` and `matches`.",
        "",
        *_fields(Rule),
    )


def scan_rules() -> str:
    """Return the page of the rules of a scan."""
    return _page(
        "Rules of a scan",
        "What `callyard scan` looks for in the definitions of upstreams: names, titles, descriptions, schemas, "
        "annotations and",
        "instructions. *high* is hardly ever harmless and makes the command exit with 1; *medium* sometimes is "
        "harmless; *low* is worth a",
        "look. Phrases are matched in lower case, without hidden characters and with lookalike letters replaced. See",
        "[Pin what upstreams offer](../guides/pinning.md).",
        "",
        "| rule | severity | finds |",
        "|---|---|---|",
        *(f"| `{rule.id}` | {rule.severity} | {rule.meaning} |" for rule in ALL_RULES),
    )


def schema() -> str:
    """Return the JSON Schema of callyard.toml."""
    structs = (
        *SECTIONS.values(),
        Key,
        Rule,
        Predicate,
        Login,
        Identity,
        Reshape,
        *(struct for struct, _ in TABLES.values()),
    )
    _, definitions = msgspec.json.schema_components(structs, ref_template="#/$defs/{name}")
    for struct in structs:
        descriptions = meanings(struct)
        definitions[struct.__name__]["description"] = inspect.getdoc(
            struct
        )  # removes the indentation, as Python 3.13 does itself
        properties = definitions[struct.__name__]["properties"]
        for name, schema in properties.items():
            properties[name] = {
                **_without_null(schema),
                **({"description": descriptions[name]} if name in descriptions else {}),
            }
    del (
        definitions["Toolset"]["properties"]["name"],
        definitions["Toolset"]["required"],
    )  # the name is the key of the table
    definitions["Toolset"]["additionalProperties"] = False
    top = definitions["Settings"]["properties"]
    for name, (struct, meaning) in TABLES.items():
        inner = {"$ref": f"#/$defs/{struct.__name__}"}
        top[name] = {"type": "object", "additionalProperties": inner, "description": meaning}
    top["pack"] = {
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "properties": {"secrets": {"type": "object", "additionalProperties": {"type": "string"}}},
        },
        "description": "The configuration of packs, by name; each pack has keys of its own.",
    }
    top["rules"] = {
        "type": "array",
        "items": {"$ref": "#/$defs/Rule"},
        "description": "Which calls run, which ask and which are denied.",
    }
    top["upstream_defaults"] = {"$ref": "#/$defs/UpstreamSettings", "description": "Settings for all upstreams."}
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "callyard.toml",
        "$ref": "#/$defs/Settings",
        "$defs": definitions,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def doctor() -> str:
    """Return the page of the findings of the doctor."""
    rows = [f"| `{name}` | {kind.status} | {kind.meaning} | {_mend(kind.mend)} |" for name, kind in FINDINGS.items()]
    return _page(
        "Findings of the doctor",
        "What [`callyard doctor`](../guides/doctor.md) may find, by id. None is ever renamed. A finding says its own "
        "cause and command;",
        "*mend* is the usual one.",
        "",
        "| id | status | means | mend |",
        "|---|---|---|---|",
        *rows,
    )


def _mend(text: str) -> str:
    return f"`{text}`" if text[0].islower() else text


def tools() -> str:
    """Return the page of the tools in the example yard and the system pack."""
    return _page(
        "Tools",
        "The tools of [examples/bank.py](../../examples/bank.py) and of the system pack, as `callyard manifest "
        "examples/bank.py",
        "--markdown` prints them. Your own yard can have such a page, too.",
        "",
        manifest("examples/bank.py"),
    )


def manifest(target: str) -> str:
    """Return the tool reference of a yard in Markdown, with headings one level deeper."""
    output = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(output):
        callyard_command(["manifest", target, "--markdown"])
    return re.sub("^#", "##", output.getvalue().strip(), flags=re.MULTILINE)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without null, which TOML does not have."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf" and (key, value) != ("default", None)}
    return {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}), **rest}


def _section(section: str) -> Iterator[tuple[str, Setting, str]]:
    descriptions = meanings(SECTIONS[section])
    for key, setting in known_settings().items():
        if setting.section == section:
            yield key, setting, descriptions[setting.name]


def _table(section: str) -> Iterator[str]:
    yield "| key | variable | default | means |"
    yield "|---|---|---|---|"
    for key, setting, meaning in _section(section):
        default = _shown(setting.name, setting.default)
        yield f"| `{key}` | `{setting.variable}`{_flag(setting)} | {default} | {meaning} |"


def _fields(struct: type[msgspec.Struct]) -> Iterator[str]:
    descriptions = meanings(struct)
    yield "| key | default | means |"
    yield "|---|---|---|"
    for field in msgspec.structs.fields(struct):
        if not field.required:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            yield f"| `{field.name}` | {_shown(field.name, default)} | {descriptions[field.name]} |"


def _flag(setting: Setting) -> str:
    flags = {name for action in make_parsers()[1]["serve"].actions for name in action.option_strings}
    return f", `{setting.flag}`" if setting.flag in flags else ""


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if name == "port":
        return str(value)  # without thousands separators
    if isinstance(value, int | float):
        return f"{value:,g}" if isinstance(value, float) else f"{value:,}"
    if isinstance(value, tuple) and value:
        return f"`{json.dumps(value)}`"
    return f"`{value}`" if isinstance(value, str) and value else "none"


def _yes_or_no(fact: bool) -> str:  # noqa: FBT001 - its only argument
    return "yes" if fact else "no"


def _page(title: str, *lines: str) -> str:
    return "\n".join([f"# {title}", "", NOTE, "", *lines, ""])


def llms() -> str:
    """Return `llms.txt` of the repository."""
    start = (
        "## Start\n\n"
        "- [Start here](docs/start.md): A function, a yard, a call, a mistake, a test.\n"
        "- [Concepts](docs/concepts.md): The ideas, one after another.\n"
        "- [Glossary](docs/glossary.md): Our words.\n"
        "- [For coding agents](AGENTS.md): How to change Callyard itself."
    )
    reference = (
        "## Reference\n\n"
        "- [Public names](docs/reference/api.md): Everything that the package exports.\n"
        "- [Codes](docs/reference/codes.md): Why a call can fail, and what follows from it.\n"
        "- [Settings](docs/reference/settings.md): Every key, variable and flag.\n"
        "- [Command line](docs/reference/cli.md): The commands and their options.\n"
        "- [Tools](docs/reference/tools.md): The tools of the example yard and of the system pack."
    )
    return llms_text(lambda name: f"docs/guides/{name}.md", start, reference)


def server_json() -> str:
    """Return the description of the server for the MCP registry."""
    argument = {
        "type": "positional",
        "value": "serve",
        "description": "Serves the 'callyard.toml' of the current folder over stdio.",
    }
    package = {
        "registryType": "pypi",
        "identifier": "callyard",
        "version": __version__,
        "runtimeHint": "uvx",
        "transport": {"type": "stdio"},
        "packageArguments": [argument],
        "environmentVariables": [
            {
                "name": f"{PREFIX}CONFIG",
                "description": "The 'callyard.toml' to serve, if it is not in the current folder.",
                "isRequired": False,
                "format": "filepath",
            }
        ],
    }
    description = {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": "io.github.callyard/callyard",
        "title": "Callyard",
        "description": "Every tool an agent uses, behind one dispatcher: upstreams, packs and Python functions.",
        "version": __version__,
        "packages": [package],
    }
    return f"{json.dumps(description, indent=2)}\n"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "codes.md": codes,
    "doctor.md": doctor,
    "scan.md": scan_rules,
    "settings.md": settings,
    "callyard.schema.json": schema,
    "tools.md": tools,
    "cli.md": command_line,
    "../../llms.txt": llms,
    "../../server.json": server_json,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    pages = {(REFERENCE / name).resolve(): generate() for name, generate in PAGES.items()}
    stale = [page for page, text in pages.items() if not page.exists() or page.read_text(encoding="utf-8") != text]
    check = arguments == ["--check"]
    if arguments and not check:
        print("Usage: generate.py [--check]", file=sys.stderr)
        return 2
    for page in stale:
        print(f"{page.relative_to(ROOT)} {'is stale: run `make generate`.' if check else 'written.'}")
        if not check:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(pages[page], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
