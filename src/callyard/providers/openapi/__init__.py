"""APIs: HTTP APIs whose documents in OpenAPI or Swagger say which operations they have; each becomes a tool.

Importing this package loads none of it: most yards have no API.

Its files:

- `answers`: an API's answers translated into data or failures, and the next page
- `calls`: the handlers of an API's tools: arguments become a request, and its answer becomes data or a failure
- `credentials`: the configured credentials, put where the document says that they belong
- `digests`: digests of operations with everything that they refer to, for pins
- `document`: a document: its files, the references in and between them, its version and its servers
- `http`: requests to the origins of one API, and to nothing else
- `loading`: a document with all files that it refers to, from files or a URL, and its copy in the state directory
- `operations`: the operations of a document: their names, texts, parameters and bodies; Swagger 2.0 is upgraded there
- `provider`: publishes the operations of one API, and follows changes of its document
- `published`: a spec for each operation, and the catalogue that pins are made of
- `reading`: files in JSON, or in YAML with JSON's types, within bounds
- `requests`: arguments written into a request, in every style of OpenAPI
- `schema`: JSON Schemas for arguments and answers, translated from those of the document
- `settings`: the settings of one API
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from callyard._internal.files import find_state_dir
from callyard._internal.project import project_dir
from callyard.providers.upstream import LOCK_FILE

if TYPE_CHECKING:
    from callyard.providers.openapi.provider import Api
    from callyard.providers.openapi.settings import ResolvedApi
    from callyard.providers.upstream.oauth.vault import Vaults

__all__ = ["make_apis"]


def make_apis(
    apis: "Mapping[str, ResolvedApi]",
    *,
    state_dir: str | None,
    project: str,
    lock: Path | None = None,
    longest: int,
    vaults: "Vaults | None" = None,
) -> "list[Api]":
    """Return the providers of a project's APIs; `lock` is the file of accepted definitions.

    Raises:
        OSError: The state directory cannot be used.
    """
    if not apis:
        return []
    from callyard.providers.openapi.provider import make_api  # noqa: PLC0415 - off without APIs
    from callyard.providers.upstream.pins import Pins  # noqa: PLC0415 - the same

    state = project_dir(find_state_dir(state_dir), project)
    pins = Pins(lock or state / LOCK_FILE, state=state)
    return [
        make_api(name, one.settings, state=state, pins=pins, longest=longest, problem=one.problem, vaults=vaults)
        for name, one in apis.items()
    ]
