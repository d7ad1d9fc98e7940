"""The tools that edit an image and move between its versions."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from callyard import ToolError, tool
from callyard_darkroom.state import Region, State, bind, diff, remove
from callyard_darkroom.vocabulary import wrong_value
from callyard_darkroom.workspace import Darkroom, branch_of, declare, edited, summary

__all__ = ["Editing", "Step"]

Limit = Annotated[int, Field(ge=1, le=200)]
Ref = Annotated[str, Field(description="A branch, a tag or a hash.")]
PartOfPicture = Annotated[
    Region | None, Field(description="The part of the picture to edit, in shares of it as it is at that edit.")
]
StepValues = Annotated[
    dict[str, Any] | None, Field(description="Parameters of the primitive; those left out have their defaults.")
]
From = Annotated[str, Field(alias="from", description="A branch, a tag or a hash.")]
Disable = Annotated[bool, Field(description="Keep them in the state, without effect.")]
Answer = dict[str, Any]


@dataclass
class Step:
    """One edit of several."""

    primitive: str
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    region: Region | None = None


class Editing:
    """Edits states and moves between versions; nothing here renders."""

    def __init__(self, darkroom: Darkroom) -> None:
        self._darkroom = darkroom

    @tool(name="darkroom_get_state", operation="query", reasons=declare("open"))
    def get_state(self, image: str) -> Answer:
        """Show where an image is: its branch, its branches and tags, and how many edits it has."""
        found = self._darkroom.images.open(image)
        versions = found.versions
        return {
            "state_after": summary(found),
            "branch": versions.head().branch,
            "branches": versions.names("heads"),
            "tags": versions.names("tags"),
            "baseline": found.record.baseline,
            "engine": found.engine,
            "width": found.record.width,
            "height": found.record.height,
        }

    @tool(
        name="darkroom_apply_primitive",
        operation="command",
        reasons=declare("change", "engine_lacks", "engine_missing", "unknown_primitive"),
    )
    def apply_primitive(
        self, image: str, primitive: str, values: StepValues = None, region: PartOfPicture = None
    ) -> Answer:
        """Add one edit to an image."""
        found = self._darkroom.images.open(image)

        def edit(state: State) -> State:
            return self._darkroom.apply(found, state, primitive, values, region)

        return edited(found, "apply_primitive", edit, primitive=primitive)

    @tool(
        name="darkroom_apply_many",
        operation="command",
        reasons=declare("change", "engine_lacks", "engine_missing", "unknown_primitive"),
    )
    def apply_many(self, image: str, steps: Annotated[list[Step], Field(min_length=1, max_length=32)]) -> Answer:
        """Add up to 32 edits to an image in one version: all of them or, if one is wrong, none."""
        found = self._darkroom.images.open(image)

        def edit(state: State) -> State:
            for number, step in enumerate(steps):
                try:
                    state = self._darkroom.apply(found, state, step.primitive, step.values, step.region)
                except ToolError as error:
                    error.details["step_index"] = number
                    raise
            return state

        return edited(found, "apply_many", edit, primitives=[step.primitive for step in steps])

    @tool(name="darkroom_remove_module", operation="command", reasons=declare("change", "unknown_entry"))
    def remove_module(
        self, image: str, entry: str | None = None, primitive: str | None = None, *, disable: Disable = False
    ) -> Answer:
        """Remove one edit by its entry id, or all of a primitive."""
        if (entry is None) is (primitive is None):
            raise wrong_value("entry", "Give either 'entry' or 'primitive'.")
        found = self._darkroom.images.open(image)

        def edit(state: State) -> State:
            return remove(state, entry=entry, primitive=primitive, disable=disable)

        return edited(found, "remove_module", edit, removed=entry or primitive)

    @tool(
        name="darkroom_bind_layers",
        operation="command",
        reasons=declare("change", "engine_lacks", "engine_missing", "unknown_look"),
    )
    def bind_layers(self, image: str, l1: str | None = None, l2: str | None = None) -> Answer:
        """Put a look in place of what a layer has: L1 is technical, L2 is for looks; your own edits (L3) stay."""
        if l1 is None and l2 is None:
            raise wrong_value("l1", "Give 'l1' or 'l2'.")
        found, darkroom = self._darkroom.images.open(image), self._darkroom

        def edit(state: State) -> State:
            state = state if l1 is None else bind(state, darkroom.vocabulary, "L1", l1)
            state = state if l2 is None else bind(state, darkroom.vocabulary, "L2", l2)
            for item in state.entries:
                darkroom.check(found, item.primitive, item.region)
            return state

        return edited(found, "bind_layers", edit, l1=l1, l2=l2)

    @tool(name="darkroom_reset", operation="command", reasons=declare("change"))
    def reset(self, image: str) -> Answer:
        """Lead the current branch back to the untouched picture; what was there stays for 30 days."""
        found = self._darkroom.images.open(image)
        with found.versions.lock():
            branch, prior = branch_of(found.versions)
            baseline = found.record.baseline
            state = found.state_of(baseline)
            found.versions.move(branch, baseline)
            found.versions.record("reset", baseline, parent=prior, ref=branch, prior_hash=prior)
            return {"state_after": state.summary(baseline), "snapshot_hash": baseline}

    @tool(name="darkroom_snapshot", operation="command", reasons=declare("change"))
    def snapshot(self, image: str, label: str | None = None) -> Answer:
        """Note the current version in the log under a label; every edit is a version anyway."""
        return edited(self._darkroom.images.open(image), "snapshot", lambda state: state, label=label)

    @tool(name="darkroom_checkout", operation="command", reasons=declare("read", "disk_full", "not_writable"))
    def checkout(self, image: str, ref: Ref) -> Answer:
        """Go to a branch, a tag or a hash; at a tag or a hash start a branch before you edit."""
        found = self._darkroom.images.open(image)
        versions = found.versions
        with versions.lock():
            digest = found.resolve(ref)
            state = found.state_of(digest)
            head, prior = versions.head()
            branch = ref.rpartition("/")[2] if versions.is_branch(ref) else None
            branch = head if ref == "HEAD" else branch
            versions.point_head(branch=branch, digest=digest)
            versions.record("checkout", digest, parent=prior, ref=branch)
            return {"state_after": state.summary(digest), "snapshot_hash": digest, "branch": branch}

    @tool(name="darkroom_branch", operation="command", reasons=declare("change", "ref_exists"))
    def branch(self, image: str, name: str, start: From = "HEAD") -> Answer:
        """Start a branch at a version and go on there."""
        found = self._darkroom.images.open(image)
        versions = found.versions
        with versions.lock():
            prior = versions.head().hash
            digest = found.resolve(start)
            state = found.state_of(digest)
            versions.create("heads", name, digest)
            versions.point_head(branch=name)
            versions.record("branch", digest, parent=prior, ref=name)
            return {"state_after": state.summary(digest), "snapshot_hash": digest, "branch": name}

    @tool(name="darkroom_tag", operation="command", reasons=declare("change", "ref_exists"))
    def tag(self, image: str, name: str, ref: Ref = "HEAD") -> Answer:
        """Give a version a name that never moves."""
        found = self._darkroom.images.open(image)
        with found.versions.lock():
            head = found.versions.head().hash
            digest = found.resolve(ref)
            found.versions.read(digest)
            found.versions.create("tags", name, digest)
            found.versions.record("tag", digest, parent=head, ref=name)
            return {"tag": name, "hash": digest}

    @tool(name="darkroom_log", operation="query", reasons=declare("open"))
    def log(self, image: str, limit: Limit = 20) -> list[Answer]:
        """List what was done to an image, the newest first."""
        return self._darkroom.images.open(image).versions.log()[:limit]

    @tool(name="darkroom_diff", operation="query", reasons=declare("read"))
    def diff(self, image: str, a: Ref | None = None, b: Ref = "HEAD") -> Answer:
        """List the entries, with ids, that differ between version a (by default the untouched picture) and b."""
        found = self._darkroom.images.open(image)
        return diff(found.state(a or found.record.baseline), found.state(b))
