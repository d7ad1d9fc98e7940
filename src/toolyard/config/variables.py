"""Variables and secrets: what texts in a file refer to, looked up when a yard starts; what is found is never said."""

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from toolyard.config.fitting import ConfigError, Place

__all__ = ["References"]

_SECRET: Final = "secretref:"  # noqa: S105 - the word that a reference begins with
_REFERENCE: Final = re.compile(r"\$(\$?)\{([^{}]*)\}")
_VARIABLE: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_INPUT: Final = "input:"


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Looks up what texts refer to: variables in the environment, secrets there, in files beside the text, or in the keyring."""

    variables: Mapping[str, str]
    folder: Path
    warn: Callable[[str], None]

    def text(self, written: str, place: Place) -> str:
        """Return a text with everything it refers to; '$${' is how '${' itself is written.

        Raises:
            ConfigError: Something it refers to is not there.
        """
        if written.startswith(_SECRET):
            return self._secret(written.removeprefix(_SECRET), place)
        return _REFERENCE.sub(lambda found: self._referred(found, place), written)

    def _referred(self, found: re.Match[str], place: Place) -> str:
        inner = found[2]
        if found[1]:
            return found[0][1:]
        if inner.startswith(_INPUT):
            raise ConfigError(
                f"{place} wants '{found[0]}', which a person is asked for by the client. Write a variable instead, as in '${{TOKEN}}', "
                "or a secret, as in 'secretref:keyring:SERVICE/NAME'."
            )
        if inner.startswith(_SECRET):
            return self._secret(inner.removeprefix(_SECRET), place)
        variable = _VARIABLE.fullmatch(inner)
        if variable is None:
            return found[0]
        value, default = self.variables.get(variable[1]), variable[2]
        if default is not None:
            return value or default
        if value is None:
            raise ConfigError(f"{place} needs the variable '{variable[1]}', which is not set.")
        return value

    def _secret(self, reference: str, place: Place) -> str:
        kind, _, name = reference.partition(":")
        find = {"env": self._from_environment, "file": self._from_file, "keyring": _from_keyring}.get(kind)
        if find is None or not name:
            forms = "'secretref:env:NAME', 'secretref:file:PATH' and 'secretref:keyring:SERVICE/NAME'"
            raise ConfigError(f"{place} refers to a secret in no known way. Known: {forms}.")
        try:
            secret = find(self.text(name, place))
        except LookupError as error:
            raise ConfigError(f"{place} needs the secret '{_SECRET}{reference}': {error.args[0]}") from None
        if not secret:
            raise ConfigError(f"{place} needs the secret '{_SECRET}{reference}', which is empty.")
        return secret

    def _from_environment(self, name: str) -> str:
        if name not in self.variables:
            raise LookupError("the variable is not set.")
        return self.variables[name]

    def _from_file(self, name: str) -> str:
        path = self.folder / Path(name).expanduser()
        try:
            with path.open(encoding="utf-8") as file:
                if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                    self.warn(f"The file '{path}' holds a secret and can be read by everybody: 'chmod 600' mends that.")
                return file.read().rstrip("\r\n")
        except OSError as error:
            raise LookupError(f"the file cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise LookupError("the file is not written in UTF-8.") from None


def _from_keyring(name: str) -> str:
    service, _, user = name.rpartition("/")
    if not service:
        raise LookupError("it is written 'secretref:keyring:SERVICE/NAME'.")
    try:
        keyring: Any = import_module("keyring")  # dear to load, and few keep secrets there
    except ImportError:
        raise LookupError("the package 'keyring' is missing; 'pip install keyring' brings it.") from None
    try:
        secret = keyring.get_password(service, user)
    except Exception as error:  # noqa: BLE001 - each system's keyring has failures of its own
        raise LookupError(f"the keyring does not open: {type(error).__name__}.") from None
    if secret is None:
        raise LookupError(f"the keyring has none; 'keyring set {service} {user}' puts it there.")
    return secret
