"""Which project a yard or a command belongs to, and the folder in the state directory that is the project's alone.

Everything that is kept between starts for a project belongs into that folder, so that two projects never share it.
"""

import re
from hashlib import sha256
from pathlib import Path
from typing import Final

__all__ = ["PROJECTS", "file_of", "find_project", "project_dir"]

PROJECTS: Final = "projects"
_FILES: Final = (".py", ".toml", ".json", ".jsonc")
_OUTSIDE: Final = re.compile(r"[^a-z0-9]+")
_NAME_CHARACTERS: Final = 32
_HASH_CHARACTERS: Final = 12


def find_project(config: Path | None = None, target: str | None = None) -> str:
    """Return the project: the folder of 'callyard.toml', else of the target's file, else the current one.

    A URL belongs to no folder, and is a project of its own.
    """
    if config is not None:
        return _folder(config)
    if target is not None and "://" in target:
        return target
    file = file_of(target or "")
    return str(Path.cwd()) if file is None else _folder(file)


def file_of(target: str) -> Path | None:
    """Return the file that a target names, or nothing if it names a module or a URL."""
    path = target if target.endswith(_FILES) else target.rpartition(":")[0]
    return Path(path) if path.endswith(_FILES) and "://" not in target else None


def project_dir(state: Path, project: str) -> Path:
    """Return the folder of a project in the state directory.

    Its name begins with the name of the project, for people who look there.
    """
    words = project.partition("://")[2].partition("/")[0] if "://" in project else Path(project).name
    name = _OUTSIDE.sub("-", words.rpartition("@")[2].lower()).strip("-")[:_NAME_CHARACTERS]
    return state / PROJECTS / f"{name or 'project'}-{sha256(project.encode()).hexdigest()[:_HASH_CHARACTERS]}"


def _folder(file: Path) -> str:
    return str(file.expanduser().absolute().parent.resolve())
