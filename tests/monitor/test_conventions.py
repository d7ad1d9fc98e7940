"""The names that telemetry uses, against a copy of the conventions' registry."""

import json
from pathlib import Path

from callyard.monitor import conventions as names
from callyard.monitor.metrics import BOUNDS_MS

REGISTRY = json.loads((Path(__file__).parent / "conventions.json").read_text())
SOURCES = Path(names.__file__).parent


def exported() -> dict[str, str]:
    return {name: value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}


def test_every_name_is_in_the_registry_or_has_our_prefix() -> None:
    known = {*REGISTRY["attributes"], *REGISTRY["metrics"]}
    values = {"EXECUTE_TOOL", "TOOL_ERROR", "OTHER_METHOD", "OWN"}

    unknown = {
        name: value
        for name, value in exported().items()
        if name not in values and value not in known and not value.startswith(names.OWN)
    }
    assert unknown == {}


def test_values_are_those_of_the_registry() -> None:
    values = REGISTRY["values"]

    assert names.EXECUTE_TOOL in values["gen_ai.operation.name"]
    assert names.TOOL_ERROR in values["error.type"]
    assert set(names.TRANSPORTS.values()) <= set(values["network.transport"])
    assert set(names.CALL_METHODS.values()) <= set(values["mcp.method.name"])


def test_the_histograms_have_the_unit_and_the_bounds_of_the_registry() -> None:
    metrics = (names.SERVER_OPERATION, names.CLIENT_OPERATION, names.SERVER_SESSION, names.CLIENT_SESSION)

    for metric in metrics:
        assert REGISTRY["metrics"][metric] == {"unit": "s", "bounds": list(names.BOUNDS_S)}
    assert {bound * 1000 for bound in names.BOUNDS_S} <= set(BOUNDS_MS)  # so the monitor's own counts are enough


def test_no_other_file_writes_a_name() -> None:
    written = [
        f"{file.name}: {name}"
        for file in (SOURCES / "tracing.py", SOURCES / "otlp.py")
        for name in [*REGISTRY["attributes"], *REGISTRY["metrics"]]
        if f'"{name}"' in file.read_text()
    ]
    assert written == []
