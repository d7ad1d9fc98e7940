"""Writes the generated pages of docs/reference from the code; `--check` only says which of them are stale."""

import ast
import contextlib
import inspect
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from toolyard import CODES, Limits
from toolyard.cli import main as toolyard_command
from toolyard.cli.parser import make_parsers
from toolyard.cli.reference import reference
from toolyard.config import Authentication, Key, Setting, Settings, known_settings
from toolyard.config.profiles import ProfileTable
from toolyard.config.settings import Serving
from toolyard.model.profile import Toolset
from toolyard.providers.upstream.scan import ALL_RULES
from toolyard.providers.upstream.settings import Identity, Login, Reshape, UpstreamSettings
from toolyard.search.settings import SearchSettings

ROOT: Final = Path(__file__).parent.parent
REFERENCE: Final = ROOT / "docs" / "reference"
SECTIONS: Final[dict[str, type]] = {"": Settings, "serve": Serving, "limits": Limits, "search": SearchSettings, "auth": Authentication}
TABLES: Final[dict[str, tuple[type[msgspec.Struct], str]]] = {
    "upstreams": (UpstreamSettings, "Other MCP servers whose tools are published, by name."),
    "profiles": (ProfileTable, "Rules of which tools exist for a caller, by name."),
    "toolsets": (Toolset, "Named subsets of tools, which profiles name."),
}
NOTE: Final = "<!-- Written by scripts/generate.py; change the code, then run `make generate`. -->"


def codes() -> str:
    """Return the page of codes."""
    rows = [
        f"| `{code.name}` | {code.meaning} | {code.http} | {code.exit} | {_said(code.retryable)} | {_said(code.recoverable)} "
        f"| {code.blame} | {code.may_have_run} | {code.hint} |"
        for code in CODES.values()
    ]
    return _page(
        "Codes",
        "Every failure has one code of this closed set. None is ever removed. *http* is the nearest status of HTTP, *exit* what the",
        "command line exits with. *retry* says that the same call may succeed later; the answer's own `retryable` is true only if",
        "nothing may have run, or running twice does no harm. *recoverable* says that other arguments or another tool can still reach",
        "the goal. *ran* says whether something may have happened already: where it is `maybe`, the answer knows. A tool's own failures",
        "use one of these codes and a reason: see [Fail well](../guides/fail-well.md). Some codes are for parts that are not there yet,",
        "such as approvals and runtimes; a tool of yours may use any of them.",
        "",
        "| code | fires when | http | exit | retry | recoverable | blame | ran | hint, unless the failure brings its own |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
    )


def settings() -> str:
    """Return the page of settings."""
    return _page(
        "Settings",
        "Every setting has a key in `toolyard.toml` and a variable of the environment, and some have a flag of `toolyard serve`. A flag",
        "beats the variable, the variable beats the file, and the file beats the default. [Configuration](../guides/configuration.md)",
        "tells more; `toolyard config` prints those in effect; with [a JSON Schema](toolyard.schema.json) editors complete the file.",
        "",
        "A variable that is empty sets nothing. In variables, true and false are `1`, `true`, `yes`, `on` and `0`, `false`, `no`, `off`;",
        "lists have commas between their parts; `api_keys` and `profiles` are JSON.",
        "",
        "## At the top",
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
        "What calls keep to: the fields of `Limits`, which a yard may be given, too: `Yard(limits=Limits(timeout=30))`. A variable is",
        "named after its limit, such as `TOOLYARD_LIMIT_TIMEOUT`. A limit that does not exist, or is negative, is refused. The tool",
        "`get_settings` of the system pack tells those in effect.",
        "",
        "| setting | default | means |",
        "|---|---|---|",
        *(f"| `{setting.name}` | {_default(setting)} | {meaning} |" for _, setting, meaning in _section("limits")),
        "",
        "## `[search]`",
        "",
        "How tools are found: the fields of `SearchSettings`, which a yard may be given, too. See [Search](../guides/search.md).",
        "",
        *_table("search"),
        "",
        "## `[auth]`",
        "",
        "Who may come in over HTTP. `api_keys` is a list of tables with `name`, `digest` and, if its owner gets one, `profile`.",
        "",
        *_table("auth"),
        "",
        "## `[upstreams.NAME]`",
        "",
        "Other MCP servers whose tools are published: see [Configuration](../guides/configuration.md#upstreams). These tables, and those",
        "below, have no variables and no flags. `[upstream_defaults]` takes the same keys but `command` and `url`, for all of them.",
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
        "The identity provider that says who we are: see [Sign in at upstreams](../guides/login.md). It must have an `issuer`, which is",
        "its address, and a `client_id`, which is the client that was registered there for us.",
        "",
        *_fields(Identity),
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
    )


def scan_rules() -> str:
    """Return the page of the rules of a scan."""
    return _page(
        "Rules of a scan",
        "What `toolyard scan` looks for in the definitions of upstreams: names, titles, descriptions, schemas with all they contain,",
        "annotations and instructions. *high* is hardly ever harmless and makes the command exit with 1; *medium* sometimes is; *low* is",
        "worth a look. Phrases are searched in lower case, without hidden characters and with lookalike letters undone. See",
        "[Pin what upstreams offer](../guides/pinning.md).",
        "",
        "| rule | severity | finds |",
        "|---|---|---|",
        *(f"| `{rule.id}` | {rule.severity} | {rule.meaning} |" for rule in ALL_RULES),
    )


def schema() -> str:
    """Return the JSON Schema of toolyard.toml."""
    structs = (
        Settings,
        Serving,
        Limits,
        SearchSettings,
        Authentication,
        Key,
        UpstreamSettings,
        Login,
        Identity,
        Reshape,
        ProfileTable,
        Toolset,
    )
    _, definitions = msgspec.json.schema_components(structs, ref_template="#/$defs/{name}")
    for struct in structs:
        told = meanings(struct)
        definitions[struct.__name__]["description"] = inspect.getdoc(struct)  # Python 3.13 takes the indentation off by itself
        properties = definitions[struct.__name__]["properties"]
        for name, known in properties.items():
            properties[name] = {**_without_null(known), **({"description": told[name]} if name in told else {})}
    del definitions["Toolset"]["properties"]["name"], definitions["Toolset"]["required"]  # its table is named so
    definitions["Toolset"]["additionalProperties"] = False
    top = definitions["Settings"]["properties"]
    for name, (struct, meaning) in TABLES.items():
        inner = {"$ref": f"#/$defs/{struct.__name__}"}
        top[name] = {"type": "object", "additionalProperties": inner, "description": meaning}
    top["upstream_defaults"] = {"$ref": "#/$defs/UpstreamSettings", "description": "What all upstreams have in common."}
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "toolyard.toml",
        "$ref": "#/$defs/Settings",
        "$defs": definitions,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def tools() -> str:
    """Return the page of the tools in the example yard and the system pack."""
    return _page(
        "Tools",
        "The tools of [examples/bank.py](../../examples/bank.py) and of the system pack, as `toolyard manifest examples/bank.py",
        "--markdown` tells them. Your own yard has such a page, too.",
        "",
        manifest("examples/bank.py"),
    )


def meanings(struct: type) -> dict[str, str]:
    """Return each field of a struct with the sentence that stands below it in the code."""
    body = next(node.body for node in ast.walk(ast.parse(inspect.getsource(struct))) if isinstance(node, ast.ClassDef))
    found: dict[str, str] = {}
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                found[name] = meaning
            case _:
                continue
    return found


def manifest(target: str) -> str:
    """Return what the command line tells of a yard as Markdown, its headings one level deeper."""
    told = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(told):
        toolyard_command(["manifest", target, "--markdown"])
    return re.sub("^#", "##", told.getvalue().strip(), flags=re.MULTILINE)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what a file may say, because TOML has no null."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf" and (key, value) != ("default", None)}
    return {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}), **rest}


def _section(section: str) -> Iterator[tuple[str, Setting, str]]:
    told = meanings(SECTIONS[section])
    for key, setting in known_settings().items():
        if setting.section == section:
            yield key, setting, told[setting.name]


def _table(section: str) -> Iterator[str]:
    yield "| key | variable | default | means |"
    yield "|---|---|---|---|"
    for key, setting, meaning in _section(section):
        yield f"| `{key}` | `{setting.variable}`{_flag(setting)} | {_default(setting)} | {meaning} |"


def _fields(struct: type[msgspec.Struct]) -> Iterator[str]:
    told = meanings(struct)
    yield "| key | default | means |"
    yield "|---|---|---|"
    for field in msgspec.structs.fields(struct):
        if not field.required:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            yield f"| `{field.name}` | {_shown(field.name, default)} | {told[field.name]} |"


def _flag(setting: Setting) -> str:
    flags = {action.dest for action in make_parsers().commands["serve"].actions if action.option_strings}
    return f", `{setting.flag}`" if setting.key in flags else ""


def _default(setting: Setting) -> str:
    return _shown(setting.name, setting.default)


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if name == "port":
        return str(value)  # a name more than a number
    if isinstance(value, int | float):
        return f"{value:,g}" if isinstance(value, float) else f"{value:,}"
    if isinstance(value, tuple) and value:
        return f"`{json.dumps(value)}`"
    return f"`{value}`" if isinstance(value, str) and value else "none"


def _said(fact: bool) -> str:  # noqa: FBT001 - it is said in words
    return "yes" if fact else "no"


def _page(title: str, *lines: str) -> str:
    return "\n".join([f"# {title}", "", NOTE, "", *lines, ""])


PAGES: Final[dict[str, Callable[[], str]]] = {
    "codes.md": codes,
    "scan.md": scan_rules,
    "settings.md": settings,
    "toolyard.schema.json": schema,
    "tools.md": tools,
    "cli.md": reference,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    pages = {REFERENCE / name: written() for name, written in PAGES.items()}
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
