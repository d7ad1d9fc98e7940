"""How a metatool is built, and the parts of a yard that metatools use."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

from callyard._internal.signed_tokens import Signer
from callyard.dispatch.call import Handler
from callyard.dispatch.dispatcher import Dispatcher
from callyard.dispatch.registry import Registry
from callyard.dispatch.tool import Check, Tool, check_by_schema
from callyard.jobs.service import Jobs
from callyard.model.limits import Limits
from callyard.model.profile import METATOOLS, UNLISTED
from callyard.model.spec import Annotations, Metatool, Operation, Reason, ToolSpec, with_codes
from callyard.policy.gate import Gate
from callyard.runtimes.settings import RuntimeSettings
from callyard.search.settings import SearchSettings
from callyard.state.store import Store

__all__ = ["TEXT", "YardParts", "build_metatool", "object_schema"]


TEXT: Final[dict[str, Any]] = {"type": "string"}
_WRAPS: Final = Annotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
"""The hints of a tool that runs any other tool."""


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
    finds: bool = False,
    wraps: bool = False,
    alias_of: str = "",
    alias: str = "",
    check: Check | None = None,
    tags: tuple[str, ...] = (),
    reasons: Mapping[str, Reason] = MappingProxyType({}),
    operation: Operation = Operation.QUERY,
) -> Tool:
    """Return a metatool; one that wraps other tools has their effects and no deadline of its own."""
    spec = ToolSpec(
        name=name,
        description=description,
        input_schema=input_schema,
        output_schema=output_schema,
        operation=Operation.COMMAND if wraps else operation,
        annotations=_WRAPS if wraps else None,
        timeout=0 if wraps else None,
        source=METATOOLS,
        tags=tags if listed else (*tags, UNLISTED),
        metatool=Metatool("find" if finds else "call" if wraps else "other", alias_of, alias),
        reasons=dict(reasons),
    )
    return Tool(spec=with_codes(spec), handler=handler, check=check or check_by_schema(input_schema), may_return_none=wraps, wraps=wraps)


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
