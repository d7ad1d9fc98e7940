"""Previews: the plan of a chain as an answer, for whoever wants to see it before anything runs."""

from typing import Any

from toolyard.metatools.plan import Plan

__all__ = ["preview"]


def preview(plan: Plan, *, can_hold: bool) -> list[dict[str, Any]]:
    """Return what would run when, what it waits for, and whether a person is asked first, where that is known."""
    told: list[dict[str, Any]] = []
    number = last = 0
    for stage in plan.stages:
        for planned in stage.steps:
            spec, step = planned.tool.spec, planned.step
            asks = True if any(one.spec.question is not None for one in (planned.tool, *planned.inner)) else None if can_hold else False
            waits = sorted({reference.target for reference in planned.references} | ({last} if step.use_previous else set[int]()))
            one: dict[str, Any] = {"step": planned.index, "tool_id": spec.name, "operation": str(spec.operation), "stage": number}
            one |= {"needs_approval": asks, **({"waits_for": waits} if waits else {}), **({"id": step.id} if step.id else {})}
            told.append(one)
            if not stage.together:
                number, last = number + 1, planned.index
        if stage.together:
            number, last = number + 1, told[-1]["step"]
    return told
