"""MCP Apps as data: tools that name a page at a `ui://` address, and the same address below the name of an upstream.

Hosts take only addresses of the scheme `ui`, so the upstream's name stands in front of the host: `ui://up+chart/view`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from callyard._internal.converted import as_object

__all__ = [
    "APPS",
    "APP_EXTENSION",
    "APP_MIME_TYPE",
    "APP_SCHEME",
    "app_meta",
    "origins_of",
    "served_as",
    "served_tool",
    "with_app_uris",
    "with_prefix",
    "without_prefix",
]

APPS: Final = "apps"
"""The capability of clients that declare the extension."""
APP_EXTENSION: Final = "io.modelcontextprotocol/ui"
APP_MIME_TYPE: Final = "text/html;profile=mcp-app"
APP_SCHEME: Final = "ui://"
_FLAT: Final = "ui/resourceUri"
"""The older key of the address in `_meta`."""
_LEVELS: Final = 8


def app_meta(uri: str) -> dict[str, Any]:
    """Return the `_meta` of a tool that is shown by the page at an address, in both forms that hosts read."""
    return {"ui": {"resourceUri": uri}, _FLAT: uri}


def with_app_uris(meta: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return `_meta` with changed addresses of Apps, if it has any."""
    changed = dict(meta)
    ui = as_object(meta.get("ui"))
    if isinstance(ui.get("resourceUri"), str):
        changed["ui"] = {**ui, "resourceUri": change(ui["resourceUri"])}
    if isinstance(meta.get(_FLAT), str):
        changed[_FLAT] = change(cast("str", meta[_FLAT]))
    return changed


def with_prefix(scheme: str, uri: str) -> str:
    """Return the address under which an App of an upstream is served."""
    return f"{APP_SCHEME}{scheme}+{uri.removeprefix(APP_SCHEME)}"


def without_prefix(scheme: str, uri: str) -> str:
    """Return the upstream's own address of an App."""
    served = f"{APP_SCHEME}{scheme}+"
    return APP_SCHEME + uri.removeprefix(served) if uri.startswith(served) else uri


def origins_of(uri: str) -> list[str]:
    """Return the addresses by which the upstreams behind an upstream know an App."""
    found: list[str] = []
    rest = uri.removeprefix(APP_SCHEME)
    while len(found) < _LEVELS and "+" in rest.partition("/")[0]:
        rest = rest.partition("+")[2]
        found.append(APP_SCHEME + rest)
    return found


def served_as(uri: str, served: Iterable[str]) -> str:
    """Return the address under which an App is served that an upstream knows by this one.

    It is the same address unless exactly one App has it, because two upstreams may use one address.
    """
    found = [other for other in served if uri in origins_of(other)]
    return found[0] if len(found) == 1 else uri


def served_tool(name: str, names: Iterable[str]) -> str:
    """Return the published name of an upstream's tool that an App calls by the upstream's name, or the same name."""
    found = [other for other in names if other.endswith(f"__{name}")]
    return found[0] if len(found) == 1 else name
