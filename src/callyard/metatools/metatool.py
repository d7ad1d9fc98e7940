"""How a metatool is built, and the parts of a yard that metatools use."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

from callyard._internal.signed_tokens import Signer
from callyard.dispatch.call import Call, Handler
from callyard.dispatch.dispatcher import Dispatcher
from callyard.dispatch.outcome import room_for_data
from callyard.dispatch.registry import Registry
from callyard.dispatch.run import run_of
from callyard.dispatch.tool import Check, Tool, check_by_schema
from callyard.jobs.service import Jobs
from callyard.model.limits import Limits
from callyard.model.profile import METATOOLS, UNLISTED
from callyard.model.spec import Annotations, Metatool, Operation, Reason, ToolSpec, with_codes
from callyard.policy.gate import Gate
from callyard.providers.provider_set import ProviderSet
from callyard.runtimes.runtime import RuntimeSettings
from callyard.search.settings import SearchSettings
from callyard.state.store import Store

__all__ = ["OTHER_NAME", "TEXT", "WRAPS", "YardParts", "build_metatool", "build_with_alias", "object_schema", "room"]

OTHER_NAME: Final = "other_name"
"""The tag of a metatool that is an alias of another one."""
TEXT: Final[dict[str, Any]] = {"type": "string"}
WRAPS: Final = Annotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
"""The hints of a tool that runs any other tool."""


_ALWAYS_LOADED: Final[dict[str, Any]] = {"_meta": {"anthropic/alwaysLoad": True}}
"""Claude Code hides the tools of servers behind a search of its own unless they say this; other clients ignore it.

Agents that saw only the names never used such a tool in 4 of 6 sessions: colbymchenry/codegraph, pull request 1697,
2026-09-04. Copilot CLI has a key in its file for the same; see `client_configs/clients.py`.
"""


def object_schema(required: str = "", **properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object without further properties; `required` has names with spaces between them."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, **({"required": required.split()} if required else {}), "additionalProperties": False}


def build_metatool(
    name: str,
    description: str,
    handler: Handler,
    *,
    input_schema: dict[str, Any],
    output_schema: dict[str, Any],
    listed: bool = False,
    use: Literal["find", "follow", "other"] = "other",
    wraps: bool = False,
    alias_of: str = "",
    alias: str = "",
    check: Check | None = None,
    reasons: Mapping[str, Reason] = MappingProxyType({}),
    operation: Operation = Operation.QUERY,
    outlives_as: str = "",
    make: type[Tool] = Tool,
) -> Tool:
    """Return a metatool; one that wraps other tools has their effects and no deadline of its own."""
    spec = ToolSpec(
        name=name,
        description=description,
        input_schema=input_schema,
        output_schema=output_schema,
        operation=Operation.COMMAND if wraps else operation,
        annotations=WRAPS if wraps else None,
        timeout=0 if wraps else None,
        source=METATOOLS,
        tags=(*((OTHER_NAME,) if alias_of else ()), *(() if listed else (UNLISTED,))),
        metatool=Metatool("call" if wraps else use, alias_of, alias),
        reasons=dict(reasons),
        extra=_ALWAYS_LOADED if listed else {},
    )
    return make(
        spec=with_codes(spec),
        handler=handler,
        check=check or check_by_schema(input_schema),
        may_return_none=wraps,
        wraps=wraps,
        outlives_as=outlives_as,
    )


def build_with_alias(name: str, description: str, handler: Handler, *, alias: str, **given: Any) -> list[Tool]:
    """Return a listed metatool, and its alias, which is not listed."""
    return [
        build_metatool(name, description, handler, listed=True, alias=alias, **given),
        build_metatool(alias, description, handler, alias_of=name, **given),
    ]


def room(yard: "YardParts", call: Call) -> int:
    """Return how many characters the data of an answer may have before it becomes a handle."""
    stated = call.channel.result_characters
    return yard.limits.result_characters if stated is None else room_for_data(run_of(call), stated)


class YardParts(Protocol):
    """The parts of a yard that its metatools use."""

    registry: Registry
    limits: Limits
    search: SearchSettings
    signer: Signer
    runtime: RuntimeSettings
    state_dir: str | None

    @property
    def jobs(self) -> Jobs:
        """Return its jobs."""
        ...

    @property
    def gate(self) -> Gate | None:
        """Return its policy of rules and approvals, if it has any."""
        ...

    @property
    def providers(self) -> ProviderSet:
        """Return its open providers."""
        ...

    @property
    def store(self) -> Store:
        """Return its store."""
        ...

    @property
    def has_store(self) -> bool:
        """Return whether it was given a store, so that its state may outlive the process."""
        ...

    @property
    def dispatcher(self) -> Dispatcher:
        """Return its dispatcher."""
        ...
