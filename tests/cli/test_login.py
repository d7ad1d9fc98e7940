"""`callyard login` and `callyard logout`: a person signs in at an upstream in a browser, and out again."""

import json
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis_programs import NEEDS_REDIS, one_server

from callyard._internal.project import find_project, project_dir
from callyard.launch.errors import exit_status
from callyard.providers.upstream.catalogue import folder_of
from callyard.providers.upstream.oauth.vault import Client, StoredLogin, Token, Vault

if TYPE_CHECKING:
    from tests.providers.upstream.authority import Authority, serving_authority
else:
    from authority import Authority, serving_authority  # found by the path that pytest is given

Run = Callable[..., tuple[int, str, str]]
BROWSER = Path(__file__).parent.parent / "conformance" / "browser.py"


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Authority]:
    """Return a server that wants a login and is in the configuration; the browser does whatever its page says."""
    monkeypatch.setitem(sys.modules, "keyring", None)
    monkeypatch.setenv("BROWSER", f"{sys.executable} -I {BROWSER} %s")
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with serving_authority() as served:
        lines = ["[upstreams.shop]", f'url = "{served.url}"', "[upstreams.files]", 'command = "files"']
        lines += ["[upstreams.known]", f'url = "{served.url}"', 'headers.Authorization = "Bearer x"']
        lines += ["[upstreams.locked]", f'url = "{served.url}"', 'login.client_secret = "${NO_SUCH_VARIABLE}"']
        (tmp_path / "callyard.toml").write_text("\n".join(lines))
        yield served


def vault_of(authority: Authority, tmp_path: Path, name: str = "shop") -> Vault:
    return Vault(
        folder_of(project_dir(tmp_path / "state", find_project(tmp_path / "callyard.toml")), name), authority.url
    )


@pytest.fixture
def one_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the browser of the environment be found, though others were looked for before."""
    import webbrowser  # noqa: PLC0415 - its list is what is changed

    monkeypatch.setattr(webbrowser, "_tryorder", None)
    monkeypatch.setattr(webbrowser, "_browsers", {})


@pytest.mark.usefixtures("one_browser")
def test_a_login_opens_a_browser_and_prints_the_granted_scopes(
    authority: Authority, callyard: Run, tmp_path: Path
) -> None:
    status, out, err = callyard("login", "shop", "--timeout", "20")

    assert status == 0
    assert out.splitlines() == [
        f"Signed in at 'shop' by '{authority.origin}'.",
        "Granted: read.",
        "It is renewed when it expires.",
    ]
    assert err.startswith(f"Sign in at 'shop' in a browser:\n{authority.origin}/authorize?")
    kept = vault_of(authority, tmp_path).read()
    assert kept is not None
    assert kept.token is not None
    assert kept.token.access_token in authority.tokens

    assert callyard("logout", "shop") == (0, "The login at 'shop' is deleted and revoked.\n", "")
    assert (vault_of(authority, tmp_path).read(), authority.tokens) == (None, {})
    assert callyard("logout", "shop") == (0, "Nobody was signed in at 'shop'.\n", "")


@pytest.mark.usefixtures("one_browser")
def test_an_address_needs_no_configuration(authority: Authority, callyard: Run, tmp_path: Path) -> None:
    (tmp_path / "callyard.toml").unlink()
    authority.given = {"refresh_token": None, "scope": "", "expires_in": 86400}

    status, out, _ = callyard("login", authority.url)

    assert (status, out.splitlines()[1:]) == (0, ["It expires in 24 hours."])
    assert out.startswith("Signed in at '127")
    assert callyard("logout", authority.url)[0] == 0


@pytest.mark.usefixtures("one_browser")
def test_commands_use_the_login_that_is_stored_for_a_url(
    authority: Authority, callyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    assert callyard("list", authority.url)[0] == exit_status("unauthenticated")

    with monkeypatch.context() as patch:
        patch.setenv("CALLYARD_KEY", "cy_another")  # which is no reason not to sign in
        assert callyard("login", authority.url)[0] == 0
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert callyard("list", authority.url)[0] == 0


@pytest.mark.usefixtures("one_browser")
def test_a_token_for_ever_and_one_for_minutes(authority: Authority, callyard: Run) -> None:
    authority.given = {"refresh_token": None, "scope": "", "expires_in": None}
    assert len(callyard("login", "shop")[1].splitlines()) == 1

    authority.given = {"refresh_token": None, "scope": "", "expires_in": 1800}
    assert callyard("login", "shop")[1].splitlines()[1] == "It expires in 30 minutes."


def test_without_a_browser_only_the_address_is_shown(authority: Authority, callyard: Run) -> None:
    status, out, err = callyard("login", "shop", "--no-browser", "--timeout", "0.5")

    assert (status, out) == (1, "")
    assert err.endswith("callyard: Nobody signed in within 0.5 seconds.\n")
    assert not authority.asked("/authorize")


@pytest.mark.usefixtures("one_browser")
def test_an_upstream_that_refused_a_yard_is_known_by_name_without_a_file(
    authority: Authority, callyard: Run, tmp_path: Path
) -> None:
    (tmp_path / "mcp.json").write_text(f'{{"mcpServers": {{"elsewhere": {{"url": "{authority.url}"}}}}}}')
    assert "There is no upstream 'elsewhere'." in callyard("login", "elsewhere")[2]
    assert "'callyard login elsewhere'" in callyard("upstreams", "mcp.json", "--check")[1]

    status, out, _ = callyard("login", "elsewhere")

    assert (status, out.splitlines()[0]) == (0, f"Signed in at 'elsewhere' by '{authority.origin}'.")
    assert "\tready\t" in callyard("upstreams", "mcp.json", "--check")[1]
    assert callyard("logout", "elsewhere")[1] == "The login at 'elsewhere' is deleted and revoked.\n"


def test_a_login_that_only_the_keyring_can_open_is_reported(
    authority: Authority, callyard: Run, tmp_path: Path
) -> None:
    folder = folder_of(project_dir(tmp_path / "state", find_project(tmp_path / "callyard.toml")), "elsewhere")
    folder.mkdir(parents=True)
    (folder / "tokens.json").write_text('{"kept_in": "keyring", "user": "x"}')
    (folder / "tokens.json").chmod(0o600)

    status, _, err = callyard("login", "elsewhere")

    assert (status, err) == (1, "callyard: The login is stored in the keyring, which is not available now.\n")
    assert "There is no upstream '../elsewhere'." in callyard("login", "../elsewhere")[2]
    assert not authority.asked("/authorize")


def test_an_upstream_that_signs_in_by_itself_needs_no_login_and_says_so(
    authority: Authority, callyard: Run, tmp_path: Path
) -> None:
    login = 'login = { grant = "client_credentials", client_id = "us", client_secret = "s" }'
    (tmp_path / "callyard.toml").write_text(f'[upstreams.shop]\nurl = "{authority.url}"\n{login}')

    status, out, err = callyard("login", "shop")

    assert (status, err) == (0, "")
    assert out.splitlines()[1:] == ["Granted: read.", "It is renewed when it expires."]


@pytest.mark.usefixtures("authority")
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("login", "shp"), "There is no upstream 'shp'. Did you mean 'shop'?"),
        (("login", "quite-another"), "There is no upstream 'quite-another'."),
        (("login", "files"), "'files' is a program, which has no login."),
        (("logout", "files"), "'files' is a program, which has no login."),
        (("login", "known"), "'known' gets the 'Authorization' of its 'headers' instead of a login."),
        (("login", "locked"), "needs the variable 'NO_SUCH_VARIABLE', which is not set."),
        (("login", "shop", "--timeout", "soon"), "'soon' is not a time such as"),
        (("login", "shop", "--timeout", "0"), "'0' is not a time such as"),
        (("login", "shop", "--timeout", "nan"), "'nan' is not a time such as"),
    ],
)
def test_an_upstream_without_a_login_is_reported(callyard: Run, arguments: tuple[str, ...], why: str) -> None:
    status, out, err = callyard(*arguments)

    assert (status, out) == (2, "")
    assert why in err


def test_without_any_upstream_an_address_is_wanted(authority: Authority, callyard: Run, tmp_path: Path) -> None:
    (tmp_path / "callyard.toml").write_text("")

    assert "Name one of the configuration, or a URL." in callyard("login", "shop")[2]


def test_a_missing_home_is_reported(authority: Authority, callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_STATE_DIR", "~nobody-of-that-name/x")

    assert "The state directory cannot be used" in callyard("login", "shop")[2]


def test_a_login_is_forgotten_though_it_cannot_be_revoked(authority: Authority, callyard: Run, tmp_path: Path) -> None:
    authority.statuses["/revoke"] = 500
    vault = vault_of(authority, tmp_path)
    client = Client(client_id="me", issuer=authority.origin)
    token = Token(access_token="a")  # noqa: S106 - no secret
    vault.write(
        StoredLogin(url=authority.url, revocation_endpoint=f"{authority.origin}/revoke", client=client, token=token)
    )

    status, out, _ = callyard("logout", "shop")

    assert status == 0
    assert out.startswith("The login at 'shop' is deleted. It could not be revoked: ")
    assert vault.stamp is None


def test_a_login_that_cannot_be_removed_is_reported(authority: Authority, callyard: Run, tmp_path: Path) -> None:
    (
        folder_of(project_dir(tmp_path / "state", find_project(tmp_path / "callyard.toml")), "shop") / "tokens.json"
    ).mkdir(parents=True)

    status, _, err = callyard("logout", "shop")

    assert (status, "cannot be removed" in err) == (1, True)


@pytest.mark.usefixtures("one_browser")
def test_logins_of_two_projects_are_separate(
    authority: Authority, callyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    for project in ("a", "b", "c"):
        (tmp_path / project).mkdir()
        (tmp_path / project / "callyard.toml").write_text(
            f'[upstreams.shop]\nurl = "{authority.url}"\n' if project != "c" else ""
        )
    monkeypatch.chdir(tmp_path / "a")
    assert callyard("login", "shop")[0] == 0

    monkeypatch.chdir(tmp_path / "b")
    assert callyard("logout", "shop")[1] == "Nobody was signed in at 'shop'.\n"
    monkeypatch.chdir(tmp_path / "c")
    status, _, err = callyard("logout", "shop")
    assert (status, "Another project has one" in err) == (2, True)
    assert callyard("logout", "shop", "--config", "../a/callyard.toml")[1].startswith("The login at 'shop' is deleted")


@NEEDS_REDIS
@pytest.mark.usefixtures("one_browser")
def test_a_login_in_a_shared_store_is_used_on_every_machine_until_the_logout(
    authority: Authority, callyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_server(tmp_path / "redis") as redis:
        settings = tmp_path / "callyard.toml"
        settings.write_text(f'store = "{redis.url}"\n{settings.read_text()}')
        before = callyard("login", "shop")
        assert (before[0], "the login is on this machine" in before[2]) == (0, True)
        assert vault_of(authority, tmp_path).read() is not None
        assert callyard("logout", "shop")[0] == 0

        monkeypatch.setenv("CALLYARD_SECRET", "a random text")
        assert callyard("login", "shop")[0] == 0
        assert vault_of(authority, tmp_path).read() is None

        monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "another machine"))
        (status,) = json.loads(callyard("upstreams", "--check", "--json", "shop")[1])[-1:]
        assert status["state"] == "ready"
        assert "callyard login shop" not in callyard("doctor")[1]
        monkeypatch.setenv("CALLYARD_SECRET", "another text")
        assert "does not open the stored one" in callyard("logout", "shop")[1]
        assert callyard("logout", "shop") == (0, "Nobody was signed in at 'shop'.\n", "")
