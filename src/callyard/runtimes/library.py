"""The standard library as sandboxes see it: without paths of this host, which may name a person.

Compiled files have the path of their source, and `sysconfig` has how the interpreter was built. The machine code of an
interpreter may still have the folder that it was built in.
"""

import asyncio
import atexit
import importlib.util
import marshal
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from callyard.runtimes.process import HOME, Interpreter, make_folder

__all__ = ["PreparedLibrary", "clean_file", "find_library", "is_left_out", "prepare_library"]

_LEFT_OUT: Final = ("site-packages", "dist-packages", "test", "tests", "idlelib", "ensurepip")
"""Folders of the standard library that no program needs, or that hold installed packages."""
_BUILD_FOLDER: Final = "config-"
_BUILD_DATA: Final = "_sysconfigdata"
_CACHE: Final = "__pycache__"
_HEADER_BYTES: Final = 16


class PreparedLibrary(NamedTuple):
    """What replaces parts of the standard library in a sandbox, by path below the library."""

    replaced: dict[str, str]
    """Folders and files to see instead of those at the same place."""
    left_out: tuple[str, ...]
    """Folders that are empty in a sandbox."""

    @property
    def is_there(self) -> bool:
        """Return whether nobody removed its folders and files."""
        return all(Path(source).exists() for source in self.replaced.values())


def is_left_out(name: str) -> bool:
    """Return whether a folder of the library is for no sandbox."""
    return name in _LEFT_OUT or name.startswith(_BUILD_FOLDER)


def clean_file(name: str, content: bytes, interpreter: Interpreter) -> bytes | None:
    """Return the content of a file of the library without paths of the host, or None if a sandbox does not need it."""
    if name.startswith(_BUILD_DATA):
        return b"build_time_vars = {}\n" if name.endswith(".py") else None
    if not name.endswith(".pyc"):
        return content
    if content[:4] != importlib.util.MAGIC_NUMBER or ".opt-" in name:
        return None  # of another version, or for '-O'
    code = marshal.loads(content[_HEADER_BYTES:])  # noqa: S302 - our own standard library, which this process runs, too
    return content[:_HEADER_BYTES] + marshal.dumps(_moved(code, interpreter))


def _moved(code: types.CodeType, interpreter: Interpreter) -> types.CodeType:
    path = code.co_filename.replace(interpreter.stdlib, f"{HOME}/{interpreter.inside}")
    inner = tuple(_moved(one, interpreter) if isinstance(one, types.CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=path, co_consts=inner)


_prepared: dict[Interpreter, PreparedLibrary] = {}
"""A library does not change while this process lives, and its preparation takes half a second."""


async def find_library(interpreter: Interpreter) -> PreparedLibrary:
    """Return what replaces parts of an interpreter's library; its files are removed when this process ends.

    They are made again if something else removed them: some systems clean their temporary folder now and then.
    """
    known = _prepared.get(interpreter)
    if known is None or not known.is_there:
        folder = make_folder()
        atexit.register(folder.cleanup)
        _prepared[interpreter] = await asyncio.to_thread(prepare_library, interpreter, Path(folder.name))
    return _prepared[interpreter]


def prepare_library(interpreter: Interpreter, folder: Path) -> PreparedLibrary:
    """Write what a sandbox sees instead of parts of the library into a folder."""
    folder.chmod(0o755)  # a sandbox may run as another user
    replaced: dict[str, str] = {}
    left_out: list[str] = []
    for root, folders, files in os.walk(interpreter.stdlib):
        place = os.path.relpath(root, interpreter.stdlib)
        left_out += [os.path.normpath(f"{place}/{name}") for name in folders if is_left_out(name)]
        folders[:] = sorted(name for name in folders if not is_left_out(name))
        if Path(root).name == _CACHE:
            replaced[place] = str(_write_cache(Path(root), files, interpreter, folder / str(len(replaced))))
        for name in files:
            if name.startswith(_BUILD_DATA) and name.endswith(".py"):
                path = folder / str(len(replaced))
                path.write_bytes(clean_file(name, b"", interpreter) or b"")
                path.chmod(0o644)
                replaced[os.path.normpath(f"{place}/{name}")] = str(path)
    return PreparedLibrary(replaced, tuple(left_out))


def _write_cache(source: Path, names: list[str], interpreter: Interpreter, target: Path) -> Path:
    target.mkdir()
    target.chmod(0o755)
    for name, content in _clean_files(source, names, interpreter):
        (target / name).write_bytes(content)
        (target / name).chmod(0o644)
    return target


def _clean_files(source: Path, names: list[str], interpreter: Interpreter) -> Iterator[tuple[str, bytes]]:
    for name in names:
        if ".opt-" in name:
            continue  # not worth reading
        content = clean_file(name, (source / name).read_bytes(), interpreter)
        if content is not None:
            yield name, content
