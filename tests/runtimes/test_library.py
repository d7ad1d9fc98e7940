"""The standard library in a sandbox has no paths of this host."""

import marshal
import os
import py_compile
import shutil
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from callyard.runtimes.library import clean_file, find_library, prepare_library
from callyard.runtimes.process import Interpreter


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    """Return an interpreter with a small library, in a folder whose name nobody may see."""
    library = tmp_path / "home-of-somebody" / "lib" / "python3"
    for name in (
        "json/__init__.py",
        "test/secret.py",
        "config-3.11/Makefile",
        "unittest/tests/more.py",
        "_sysconfigdata_x.py",
    ):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text("def loads():\n    return lambda: 1\n")
    for level in (0, 1):
        py_compile.compile(str(library / "json/__init__.py"), optimize=level)
    (library / "json/__pycache__/other.pyc").write_bytes(b"magic of another version")
    return Interpreter("/python", str(library), "lib/python3", ())


def paths_in(code: types.CodeType) -> Iterator[str]:
    yield code.co_filename
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from paths_in(one)


def test_compiled_files_name_the_place_in_the_sandbox_and_the_build_is_not_described(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    folder = tmp_path / "prepared"
    folder.mkdir()
    prepared = prepare_library(interpreter, folder)

    assert sorted(prepared.replaced) == ["_sysconfigdata_x.py", "json/__pycache__"]
    assert sorted(prepared.left_out) == ["config-3.11", "test", "unittest/tests"]
    assert Path(prepared.replaced["_sysconfigdata_x.py"]).read_text() == "build_time_vars = {}\n"
    (compiled,) = Path(prepared.replaced["json/__pycache__"]).iterdir()
    code = marshal.loads(compiled.read_bytes()[16:])  # noqa: S302 - it was compiled above
    assert set(paths_in(code)) == {"/python/lib/python3/json/__init__.py"}
    source = Path(interpreter.stdlib, "json", "__pycache__", compiled.name)
    assert compiled.read_bytes()[:16] == source.read_bytes()[:16]  # so that the interpreter takes it for current
    assert oct(compiled.stat().st_mode)[-3:] == "644"


def test_other_files_stay_as_they_are(interpreter: Interpreter) -> None:
    assert clean_file("a.py", b"x = 1", interpreter) == b"x = 1"
    assert clean_file("_sysconfigdata_x.cpython-311.pyc", b"", interpreter) is None
    assert clean_file("a.cpython-299.pyc", os.urandom(20), interpreter) is None


async def test_a_library_is_prepared_once_and_again_if_its_files_are_gone(interpreter: Interpreter) -> None:
    first = await find_library(interpreter)
    assert await find_library(interpreter) is first
    shutil.rmtree(Path(first.replaced["json/__pycache__"]).parent)
    second = await find_library(interpreter)

    assert second.replaced != first.replaced
    assert second.is_there
    assert not first.is_there
