"""A pack as data: what an installed package offers, and what its provider is given for one yard.

A pack runs nothing by itself; `pack_set` opens the packs that a yard names.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, Final, cast

import msgspec

from callyard._internal.converted import Converted, Converters, as_tuple
from callyard._internal.files import make_private
from callyard._internal.programs import KeptProgram, keep_program
from callyard.config.packs import SECRETS, fields_of
from callyard.model.names import did_you_mean
from callyard.model.profile import Toolset
from callyard.model.spec import Reason
from callyard.providers import Provider

__all__ = ["SYSTEM", "Needs", "Pack", "PackContext", "PackError", "check_pack"]

SYSTEM: Final = "system"
"""The pack that comes with Callyard; its tools keep their names."""
_NAME: Final = re.compile(r"[a-z][a-z0-9]*\Z")
_TARGET: Final = re.compile(r"[a-z][a-z0-9_]*\Z")


class PackError(ValueError):
    """A pack cannot be used; the message names the pack, its package, and what to do."""


class Needs(msgspec.Struct, frozen=True, kw_only=True, metaclass=Converted):
    """What a pack needs beside its Python packages."""

    converters: ClassVar[Converters] = dict.fromkeys(("programs", "optional", "eval_targets"), as_tuple)
    programs: tuple[str, ...] = ()
    """Programs without which the pack does not open, by name or path."""
    optional: tuple[str, ...] = ()
    """Programs that some of its tools use."""
    eval_targets: tuple[str, ...] = ()
    """Where its tools may run code, such as `page`."""


class PackContext:
    """What the provider of a pack is given: its configuration, secrets and state folder, for one yard."""

    def __init__(
        self,
        name: str,
        *,
        config: Any,
        secrets: Mapping[str, str],
        find_folder: Callable[[], Path],
        base: Path = Path(),
    ) -> None:
        self.name = name
        self.config = config
        """The table `[pack.NAME]` as the type that the pack declares, with references filled in."""
        self._secrets = secrets
        self._find_folder = find_folder
        self._base = base

    @property
    def secrets(self) -> Sequence[str]:
        """Return the names of the configured secrets."""
        return sorted(self._secrets)

    def secret(self, name: str) -> str:
        """Return a secret of `[pack.NAME.secrets]`.

        Raises:
            LookupError: There is none of that name.
        """
        if name not in self._secrets:
            known = did_you_mean(name, self.secrets) or f" Known: {', '.join(self.secrets) or 'none'}."
            raise LookupError(f"The pack '{self.name}' has no secret '{name}'.{known}")
        return self._secrets[name]

    def path(self, text: str) -> Path:
        """Return the absolute path of a setting: relative to the folder of the settings file, `~` is the home."""
        return (self._base / Path(text).expanduser()).absolute()

    def folder(self) -> Path:
        """Return the pack's own folder in the state directory of the project, which only its owner can read.

        Raises:
            OSError: It cannot be created.
        """
        folder = self._find_folder()
        make_private(folder)
        return folder

    def keep_program(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> AbstractAsyncContextManager[KeptProgram]:
        """Run a program while the context is open; it and its descendants end with it, and with this process.

        Of our environment it gets what every program needs, such as PATH and HOME, and what `env` adds.
        """
        return keep_program(command, env=env, cwd=cwd)


class Pack(msgspec.Struct, frozen=True, kw_only=True, metaclass=Converted):
    """What a package offers under one name; the entry point of the package leads to it."""

    converters: ClassVar[Converters] = dict.fromkeys(("shown", "toolsets"), as_tuple)
    name: str
    """Lower-case letters and digits; the names of its tools begin with it and `_`."""
    make: Callable[[PackContext], Provider]
    """Returns a fresh provider for one yard."""
    requires: str = ""
    """The range of Callyard versions that it works with, such as `>=0.1,<2`."""
    config: type | None = None
    """The type of its table `[pack.NAME]`: a struct, a dataclass or a pydantic model."""
    shown: tuple[str, ...] = ()
    """The fields of its configuration that callers may see."""
    reasons: dict[str, Reason] = {}
    """Every reason that its tools declare, so that they can be read without opening it."""
    needs: Needs = Needs()
    toolsets: tuple[Toolset, ...] = ()
    """Subsets of its tools, which profiles can name; their names begin with its own and `_`."""
    version: str = ""
    """Its version; an installed pack has that of its package."""
    package: str = ""
    """The package that it is from; set when it is loaded."""

    def __repr__(self) -> str:
        """Return the name alone."""
        return f"<Pack '{self.name}'>"


def check_pack(pack: object, name: str) -> Pack:
    """Return what an entry point of that name leads to, if it is a valid pack.

    Raises:
        ValueError: It is not; the message is a sentence.
    """
    if not isinstance(pack, Pack):
        raise ValueError(f"It leads to a '{type(pack).__name__}' and not to a 'Pack'.")  # noqa: TRY004 - every wrong pack is a ValueError
    if pack.name != name:
        raise ValueError(f"It leads to a pack that is named '{pack.name}'.")
    if not isinstance(cast("object", pack.name), str) or not _NAME.match(pack.name) or pack.name == SYSTEM:
        raise ValueError("A pack is named with small letters and digits, a letter first, and not 'system'.")
    if not callable(pack.make):
        raise ValueError("Its 'make' is no function.")  # noqa: TRY004 - the same
    _check_fields(pack)
    for toolset in pack.toolsets:
        if not toolset.name.startswith(f"{name}_"):
            raise ValueError(f"Its toolset '{toolset.name}' must have a name that begins with '{name}_'.")
    for target in pack.needs.eval_targets:
        if not _TARGET.match(target):
            raise ValueError(f"Its eval target '{target}' must be named with small letters, digits and '_'.")
    return pack


def _check_fields(pack: Pack) -> None:
    known = fields_of(pack.config)
    for field in pack.shown:
        if field not in known:
            raise ValueError(f"Its configuration has no field '{field}' that could be shown.")
    if SECRETS in known:
        raise ValueError(f"Its configuration has a field '{SECRETS}', which is the table of secrets of every pack.")
