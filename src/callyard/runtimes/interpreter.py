"""The interpreter of this process: the files of it that a sandbox needs, for every kind of installation."""

import json
import os
import sys
from typing import Final, NamedTuple

from callyard.runtimes.host import run_program
from callyard.runtimes.runtime import RuntimeMissingError

__all__ = ["DATA", "HOME", "LEFT_OUT", "Interpreter", "base_executable", "find_interpreter"]

HOME: Final = "/python"
"""Where a sandbox has the interpreter: a fixed place, because the real one may name a person."""
DATA: Final = ("/usr/share/zoneinfo",)
"""Data of the system that the standard library reads."""
LEFT_OUT: Final = ("site-packages", "dist-packages", "test", "idlelib", "ensurepip")
"""Folders of the standard library that no program needs, or that hold installed packages."""
_INSPECT: Final = """
import ctypes, importlib, json, pathlib, sys, sysconfig
stdlib = sysconfig.get_path('stdlib')
for found in (pathlib.Path(sysconfig.get_path('platstdlib')) / 'lib-dynload').glob('*.so'):
    name = found.name.split('.')[0]
    if not name.startswith(('_test', '_tkinter', 'xx', '_xx')):
        try: importlib.import_module(name)
        except ImportError: pass
names = []
class Info(ctypes.Structure):
    _fields_ = (('address', ctypes.c_void_p), ('name', ctypes.c_char_p))
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def note(info, size, data):
    names.append((info.contents.name or b'').decode())
    return 0
ctypes.CDLL(None).dl_iterate_phdr(note, None)
print(json.dumps([stdlib, sys.base_prefix, names]))
"""
"""Loads every extension of the standard library and prints which shared libraries the linker took, by the names it looked for."""


def base_executable() -> str:
    """Return the interpreter that runs this process, behind its virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


class Interpreter(NamedTuple):
    """What a sandbox needs of a Python: its program, its standard library and the shared libraries they load."""

    executable: str
    stdlib: str
    inside: str
    """The path of the standard library below the prefix, such as 'lib/python3.11'."""
    libraries: tuple[str, ...]


_found: dict[str, Interpreter] = {}
"""An interpreter does not change while this process lives, and its inspection takes 0.2 s."""


async def find_interpreter() -> Interpreter:
    """Return the interpreter of this process, for every kind of installation.

    Raises:
        RuntimeMissingError: It cannot be inspected.
    """
    executable = base_executable()
    if executable in _found:
        return _found[executable]
    argv = (executable, "-I", "-S", "-B", "-W", "ignore", "-c", _INSPECT)
    status, out, _ = await run_program(*argv, env={})
    if status:
        raise RuntimeMissingError(f"The interpreter '{executable}' cannot be inspected.")
    stdlib, prefix, names = json.loads(out)
    libraries = {name for name in names if name.startswith("/") and not name.startswith(f"{stdlib}/")}
    found = _found[executable] = Interpreter(executable, stdlib, stdlib.removeprefix(f"{prefix}/"), tuple(sorted(libraries)))
    return found
