"""APIs in 'callyard.toml': added, shown, checked, compared, accepted and removed by commands."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row

from callyard.config import ConfigError, read_config

Run = Callable[..., tuple[int, str, str]]
DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "servers": [{"url": "https://shop.example"}],
    "paths": {
        "/items": {"get": {"operationId": "listItems", "summary": "List items."}, "post": {"operationId": "make"}}
    },
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.json").write_text(json.dumps(DOCUMENT))


def test_an_api_is_added_served_compared_and_removed(callyard: Run, tmp_path: Path) -> None:
    added = callyard("add", "shop", "--openapi", "shop.json", "--header", "X-Key: ${SHOP_KEY:-none}")
    again = callyard("add", "shop", "--openapi", "shop.json")
    text = (tmp_path / "callyard.toml").read_text()
    listed = callyard("list", "--json")
    shown = callyard("upstreams", "--json")
    checked = callyard("upstreams", "--check")
    same = callyard("diff", "shop")
    changed = {**DOCUMENT, "paths": {"/items": {"get": {"operationId": "listItems", "summary": "Steal items."}}}}
    (tmp_path / "shop.json").write_text(json.dumps(changed))
    callyard("list")
    differs = callyard("diff", "shop")
    accepted = callyard("accept", "shop", "--all")
    restarted = callyard("restart", "shop")
    settings = callyard("config")
    removed = callyard("remove", "shop")

    assert added[0] == 0
    assert again[0] == 2
    assert '[apis.shop]\ndocument = "shop.json"' in text
    assert "shop__list_items" in listed[1]
    assert json.loads(shown[1])[0]["tools"] == 2
    assert checked[0] == 0, checked
    assert same[0] == 0
    assert differs[0] == 1
    assert "-List items." in differs[1]
    assert accepted[0] == 0
    assert restarted[0] == 2
    assert "apis.shop.document\tshop.json" in settings[1]
    assert removed[0] == 0
    assert (tmp_path / "callyard.toml").read_text().strip() == ""


@every_row(
    "arguments",
    [
        ("--openapi", "none.json"),
        ("--openapi", "shop.json", "--env", "A=b"),
        ("--openapi", "shop.json", "--", "program"),
    ],
)
def test_an_api_needs_a_document_and_takes_no_command(arguments: tuple[str, ...], callyard: Run) -> None:
    assert callyard("add", "shop", *arguments)[0] == 2


def test_a_document_at_a_url_is_added_as_it_is(callyard: Run, tmp_path: Path) -> None:
    url = "https://shop.example/openapi.json"

    assert callyard("add", "shop", "--openapi", url, "--url", "https://api.example")[0] == 0
    assert f'document = "{url}"\nbase_url = "https://api.example"' in (tmp_path / "callyard.toml").read_text()


def test_a_file_may_say_everything_of_an_api(tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text(
        """
        [apis.shop]
        document = "${NAME:-shop}.json"
        credentials = {key = "${KEY}"}
        files_root = "up"
        headers = {X = "y"}
        login = {client_id = "c", client_secret = "planted"}
        [apis.shop.overrides."GET"]
        operation = "command"
        [apis.lost]
        document = "https://user:planted@a/x?key=planted"
        headers = {A = "${MISSING_HERE}"}
        """
    )
    config = read_config(path=str(path), environment={})
    entry = config.apis["shop"]
    settings = entry.resolve({"KEY": "k"}, lambda _: None)

    assert config.is_yard
    assert settings.document == str(tmp_path / "shop.json")
    assert settings.files_root == str(tmp_path / "up")
    assert settings.credentials == {"key": "k"}
    assert entry.try_resolve({"KEY": "k"}, lambda _: None).problem == ""
    assert config.apis["lost"].try_resolve({}, lambda _: None).problem
    assert "planted" not in json.dumps(config.tables, default=str)
    assert settings.secrets() == {"k", "planted"}


@every_row(
    "text",
    [
        "[apis.shop]",
        "[apis.shop]\ndocument = 7",
        "[apis.shop]\ndocument = 'x'\nunknown = 1",
        "[apis.shop]\ndocument = 'x'\nin_flight = 0",
        "[apis.shop]\ndocument = 'x'\ndocument_seconds = -1",
        "[apis.Shop]\ndocument = 'x'",
        "[apis.system]\ndocument = 'x'",
        "[apis.a-b]\ndocument = 'x'\n[apis.a_b]\ndocument = 'x'",
        "[apis.shop]\ndocument = 'x'\n[upstreams.shop]\nurl = 'https://a'",
        "[apis.shop]\ndocument = 'x'\n[apis.shop.overrides.x]\noperation = 'eval'",
        "apis = 7",
    ],
)
def test_a_wrong_api_is_refused_with_its_key(text: str, tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match="apis"):
        read_config(path=str(path), environment={})


def test_an_api_without_a_document_cannot_be_signed_in_at(callyard: Run, tmp_path: Path) -> None:
    (tmp_path / "callyard.toml").write_text("[apis.shop]\ndocument = 'gone.json'\nlogin = {client_id = 'c'}\n")

    status, _, err = callyard("login", "shop", "--no-browser")

    assert status == 2
    assert "gone.json" in err
