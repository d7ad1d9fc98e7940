"""Documents: what a client's file says, whatever it is written in."""

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from toolyard.config.fitting import ConfigError
from toolyard.config.foreign import parse_json

__all__ = ["YAML", "decode", "parse", "read_bytes"]

YAML: Final = (".yaml", ".yml")
"""How the names of files in YAML end."""


def read_bytes(path: Path) -> bytes | None:
    """Return what is in a file, nothing if there is no such file.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"The file '{path}' cannot be read: {error.strerror}.") from None


def decode(content: bytes, path: Path) -> str:
    """Return the text of a file; a mark of the order of bytes stays.

    Raises:
        ConfigError: It is not written in UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"The file '{path}' is not written in UTF-8.") from None


def parse(text: str, path: Path) -> object:
    """Return what a text says, as the name of its file tells how to read it; one without any content says nothing.

    Raises:
        ConfigError: It says nothing that can be understood.
    """
    plain = text.removeprefix("\ufeff")
    if path.suffix == ".toml":
        return _parse_toml(plain, path)
    if path.suffix in YAML:
        return _parse_yaml(plain, path)
    if not plain.strip():
        return {}
    try:
        return parse_json(plain, str(path))
    except RecursionError:
        raise ConfigError(f"The file '{path}' is nested too deeply.") from None


def _parse_toml(text: str, path: Path) -> object:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"The file '{path}' is no TOML: {str(error).removesuffix('.')}.") from None


def _parse_yaml(text: str, path: Path) -> object:
    try:
        yaml: Any = import_module("yaml")  # few clients need it, so it is no requirement of ours
    except ImportError:
        raise ConfigError(f"The file '{path}' is YAML, and no reader for it is installed; 'pip install pyyaml' brings one.") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"The file '{path}' is no YAML{where}.") from None
