"""What the tools share: images, vocabulary and engines, and how a state is changed and shown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from callyard import Reason, ToolError
from callyard_darkroom.engines import Engine, Slots
from callyard_darkroom.images import Image, Images, no_baseline
from callyard_darkroom.state import Region, State, add, encode
from callyard_darkroom.versions import Versions
from callyard_darkroom.vocabulary import Vocabulary, wrong_value

__all__ = ["REASONS", "Darkroom", "change", "declare", "edited", "summary"]

REASONS: Final[Mapping[str, Reason]] = {
    "damaged_object": Reason("state_error"),
    "detached_head": Reason("state_error"),
    "disk_full": Reason("state_error"),
    "edit_dropped": Reason("upstream_error", ("stderr",)),
    "engine_failed": Reason("upstream_error", ("stderr",)),
    "engine_lacks": Reason("not_supported", ("engine",)),
    "engine_missing": Reason("upstream_unavailable", ("engine",)),
    "image_changed": Reason("state_error"),
    "image_exists": Reason("state_error", ("image",)),
    "image_gone": Reason("not_found"),
    "newer_workspace": Reason("state_error"),
    "no_baseline": Reason("state_error"),
    "not_a_picture": Reason("invalid_input"),
    "not_writable": Reason("permission_denied"),
    "outside_roots": Reason("permission_denied"),
    "ref_exists": Reason("state_error"),
    "too_many_pixels": Reason("too_large", ("megapixels", "limit")),
    "unknown_entry": Reason("not_found", ("known",)),
    "unknown_image": Reason("not_found"),
    "unknown_look": Reason("not_found", ("similar",)),
    "unknown_primitive": Reason("not_found", ("similar",)),
    "unknown_ref": Reason("not_found", ("known",)),
}
"""Every reason of the tools."""
_OPEN: Final = ("damaged_object", "newer_workspace", "outside_roots", "unknown_image")
_READ: Final = (*_OPEN, "no_baseline", "unknown_ref")
_CHANGE: Final = (*_READ, "detached_head", "disk_full", "not_writable")
_RENDER: Final = (*_READ, "edit_dropped", "engine_failed", "engine_missing", "image_changed", "image_gone")
_GROUPS: Final[Mapping[str, Sequence[str]]] = {"open": _OPEN, "read": _READ, "change": _CHANGE, "render": _RENDER}


def declare(group: str, *more: str) -> dict[str, Reason]:
    """Return the reasons of a tool: those of a group, and more."""
    return {name: REASONS[name] for name in sorted({*_GROUPS[group], *more})}


class Darkroom(NamedTuple):
    """What the tools of one yard share."""

    images: Images
    vocabulary: Vocabulary
    engines: Mapping[str, Engine]
    slots: Slots
    engine: str
    most_megapixels: int

    def engine_of(self, image: Image) -> Engine:
        """Return the engine that an image was ingested with; there is never another one.

        Raises:
            ToolError: `upstream_unavailable`, reason `engine_missing`.
        """
        if image.engine not in self.engines:
            message = f"This yard has no engine '{image.engine}'."
            raise ToolError("upstream_unavailable", message, reason="engine_missing", engine=image.engine)
        return self.engines[image.engine]

    def check(self, image: Image, primitive: str, region: Region | None) -> None:
        """Check that the engine of an image has an edit.

        Raises:
            ToolError: `not_supported`, reason `engine_lacks`; `invalid_input` for a region outside the picture.
        """
        lack = self.engine_of(image).lacks(self.vocabulary.primitive(primitive), has_region=region is not None)
        if lack:
            message = f"The engine '{image.engine}' {lack}."
            raise ToolError("not_supported", message, reason="engine_lacks", engine=image.engine)
        if region is not None and not region.is_inside:
            raise wrong_value("region", "A region lies inside the picture, in shares of its width and height.")

    def apply(
        self, image: Image, state: State, primitive: str, values: Mapping[str, object] | None, region: Region | None
    ) -> State:
        """Return the state with one edit more, if its engine has it."""
        found = self.vocabulary.primitive(primitive)
        complete = found.complete(values or {})
        self.check(image, primitive, region)
        return add(state, found, complete, region=region.rounded() if region is not None else None)


def edited(image: Image, op: str, edit: Callable[[State], State], **more: Any) -> dict[str, Any]:
    """Change the state of an image by a function of it, as a new version on its branch, and return the answer."""
    with image.versions.lock():
        return change(image, op, edit, **more)


def change(image: Image, op: str, edit: Callable[[State], State], **more: Any) -> dict[str, Any]:
    """Do that while the caller holds the lock.

    Raises:
        ToolError: `state_error`, reason `detached_head` or `no_baseline`; what the function raises.
    """
    versions = image.versions
    branch, parent = branch_of(versions)
    state = edit(image.state_of(parent))
    digest = versions.write(encode(state))
    versions.move(branch, digest)
    try:
        versions.record(op, digest, parent=parent, ref=branch, **more)
    except OSError:  # such as a full disk: what cannot be recorded is not done
        versions.move(branch, parent)
        raise
    return {"state_after": state.summary(digest), "snapshot_hash": digest}


def branch_of(versions: Versions) -> tuple[str, str]:
    """Return the branch that changes go to, and its version.

    Raises:
        ToolError: `state_error`, reason `detached_head` or `no_baseline`.
    """
    head = versions.head()
    if head.branch is None:
        message = "The image is at a version and on no branch. Start a branch there, or check one out."
        raise ToolError("state_error", message, reason="detached_head", may_have_run=False)
    if head.hash is None:
        raise no_baseline()
    return head.branch, head.hash


def summary(image: Image) -> dict[str, Any]:
    """Return the summary of the state of an image; before its first version it is empty."""
    head = image.versions.head()
    return (image.state_of(head.hash) if head.hash else State()).summary(head.hash)
