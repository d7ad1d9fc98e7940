"""Specs as documents: a tool as data, with what is assumed or derived said, too."""

from typing import Any

from toolyard.spec import ToolSpec

__all__ = ["document", "operation_text", "reason_text"]


def document(spec: ToolSpec) -> dict[str, Any]:
    """Return the whole spec, defaults and all, with the annotations in effect and the codes it may answer with."""
    fields: dict[str, Any] = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return {**fields, "annotations": spec.hints(), "codes": spec.codes()}


def operation_text(spec: ToolSpec) -> str:
    """Return the operation, and whether nobody said it."""
    return f"{spec.operation} (assumed)" if spec.operation_assumed else str(spec.operation)


def reason_text(spec: ToolSpec, name: str) -> str:
    """Return the code a reason comes with, and the keys its details carry."""
    reason = spec.reasons[name]
    return f"{reason.code}, with {', '.join(reason.details)}" if reason.details else reason.code
