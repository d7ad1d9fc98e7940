"""Yards without code: files and addresses that name other servers, which are real ones here."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from callyard.launch.errors import exit_status
from callyard.transports.auth import digest_of

Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., Path]

PYTHON = json.dumps(sys.executable)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def yard_file(shop: str, write: Write) -> str:
    """Write a file whose only upstream is the shop beside it."""
    return write(
        f"[upstreams.shop]\ncommand = {PYTHON}\nargs = ['-m', 'callyard', 'serve', '{shop}', '--quiet']\n",
        "callyard.toml",
    ).name


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def names_of(out: str) -> list[str]:
    return [line.split("\t")[0] for line in out.splitlines()]


@pytest.mark.parametrize("arguments", [["callyard.toml"], [], ["--config", "callyard.toml"]])
def test_a_file_with_upstreams_alone_is_a_yard(arguments: list[str], yard_file: str, callyard: Run) -> None:
    status, out, _ = callyard("list", *arguments, "--wait")

    assert status == 0
    assert "shop__list_orders" in names_of(out)


def test_a_tool_of_an_upstream_is_called(yard_file: str, callyard: Run) -> None:
    status, out, _ = callyard("call", yard_file, "shop__echo", "text=hello", "--json")

    assert status == 0
    assert json.loads(out)["success"] is True
    assert "hello" in out


def with_a_hanging_one(yard_file: str) -> None:
    """Add an upstream that never answers, because it sleeps, and is waited for long."""
    slow = "connect_seconds = 600\nlist_seconds = 600\n"
    with Path(yard_file).open("a") as file:
        file.write(f"[upstreams.hangs]\ncommand = {PYTHON}\nargs = ['-c', 'import time; time.sleep(600)']\n{slow}")


def test_a_call_of_one_tool_waits_for_no_other_upstream(yard_file: str, callyard: Run) -> None:
    with_a_hanging_one(yard_file)

    assert callyard("call", yard_file, "shop__echo", "text=hello")[0] == 0
    assert callyard("describe", yard_file, "shop__echo")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["search_tools", "query=answer with the arguments"], "shop__echo"),
        (["run_tool", "tool_id=shop__echo", 'arguments={"text": "hello"}'], "hello"),
    ],
)
def test_a_metatool_waits_for_the_upstreams_that_it_is_about(
    arguments: list[str], expected: str, yard_file: str, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callyard.yard._READY_S", 0)  # it is open before any upstream is there
    status, out, _ = callyard("call", yard_file, *arguments, "--json")

    assert (status, expected in out) == (0, True)


def test_a_description_of_a_metatool_waits_for_no_upstream(yard_file: str, callyard: Run) -> None:
    with_a_hanging_one(yard_file)

    assert callyard("describe", yard_file, "search_tools")[0] == 0


def test_the_whole_list_names_the_upstreams_that_it_waits_for(
    yard_file: str, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    callyard("list", yard_file, "--wait")
    with_a_hanging_one(yard_file)
    monkeypatch.setattr("callyard.cli.targets._SILENT_S", 0.01)
    monkeypatch.setattr("callyard.yard._READY_S", 0.01)
    monkeypatch.setattr("callyard.cli.targets._TIMEOUT_S", 1.0)
    status, _, err = callyard("list", yard_file, "--wait")

    assert (status, "'hangs' …" in err) == (0, True)


def test_a_list_of_an_address_without_a_server_says_why_it_is_empty(callyard: Run) -> None:
    status, out, err = callyard("list", "http://127.0.0.1:1/mcp")

    assert (status, out) == (exit_status("upstream_unavailable"), "")
    assert "cannot be reached" in err


def test_one_upstream_that_is_not_there_does_not_keep_the_others_from_being_listed(
    yard_file: str, callyard: Run
) -> None:
    with Path(yard_file).open("a") as file:
        file.write("[upstreams.gone]\nurl = 'http://127.0.0.1:1/mcp'\n")
    status, out, err = callyard("list", yard_file, "--wait")

    assert (status, "shop__list_orders" in names_of(out)) == (0, True)
    assert "'gone' offers nothing for now. " in err
    assert "offers nothing" not in callyard("list", yard_file, "--quiet")[2]


def test_packs_and_profiles_of_the_file_hold(yard_file: str, callyard: Run, write: Write) -> None:
    rules = "[toolsets.own]\nsources = ['system']\n[profiles.own]\ntoolsets = ['own']\nsurface = 'direct'\n"
    write(f"packs = ['system']\nprofile = 'own'\n{rules}{Path(yard_file).read_text()}", "callyard.toml")
    status, out, _ = callyard("list", "--wait")

    assert status == 0
    assert "ping" in names_of(out)
    assert "shop__echo" not in names_of(out)


def test_upstreams_are_added_to_a_yard_that_is_written_in_python(yard_file: str, callyard: Run, write: Write) -> None:
    write(
        'from callyard import Yard\n\ndef look() -> str:\n    """Look."""\n    return "x"\n\nyard = Yard("own", '
        "tools=[look])\n",
        "own.py",
    )
    status, out, _ = callyard("list", "own.py", "--wait")

    assert status == 0
    assert {"look", "shop__echo"} <= set(names_of(out))


def test_a_clients_file_is_a_target(shop: str, callyard: Run, write: Write) -> None:
    server = {
        "command": sys.executable,
        "args": ["-m", "callyard", "serve", shop, "--quiet"],
        "callyard": {"tools": ["echo"]},
    }
    write(json.dumps({"mcpServers": {"Shop": server}}), "mcp.json")
    status, out, err = callyard("list", "mcp.json", "--wait")

    assert status == 0
    assert names_of(out) == ["shop__echo"]
    assert "'mcpServers.Shop' in 'mcp.json' is named 'shop' here." in err


@pytest.fixture
def address(shop: str) -> Generator[str]:
    """Serve the shop over HTTP, and return where."""
    program = [sys.executable, "-m", "callyard", "serve", shop, "--transport", "http", "--port", "0"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=os.environ) as server:  # noqa: S603 - our own
        assert server.stderr is not None
        yield server.stderr.readline().rpartition("address=")[2].strip()
        server.terminate()


def test_an_address_is_a_target_whose_tools_keep_their_names(address: str, callyard: Run) -> None:
    status, out, _ = callyard("call", address, "echo", "text=hello", "--json")

    assert status == 0
    assert "hello" in out


@pytest.fixture
def guarded(shop: str, write: Write, tmp_path: Path) -> Generator[str]:
    """Serve the shop over HTTP to the owner of the key 'cy_ada', and return where."""
    config = write(f"[auth]\napi_keys = [{{name = 'ada', digest = '{digest_of('cy_ada')}'}}]\n", "server.toml")
    program = [sys.executable, "-m", "callyard", "serve", shop, "--config", str(config)]
    program += ["--transport", "http", "--port", "0"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=os.environ) as server:  # noqa: S603 - our own
        assert server.stderr is not None
        yield server.stderr.readline().rpartition("address=")[2].strip()
        server.terminate()


CALL = ("call", "echo", "text=hello", "--json")
BACKGROUND = ("call", "echo", "text=hello", "--background", "--json")
EXPLAIN = ("policy", "explain", "echo", "text=hello")
COMMANDS = [CALL, BACKGROUND, ("describe", "echo"), ("list",), ("manifest",), EXPLAIN]


def words_of(command: tuple[str, ...], url: str) -> list[str]:
    """Return the words of a command about the server at a URL."""
    name, *arguments = command
    return [name, *arguments, "--target", url] if name == "policy" else [name, url, *arguments]


def test_every_command_takes_credentials_for_a_url(
    guarded: str, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {
        "key": ["--key", "cy_ada"],
        "header": ["--header", "X-API-Key: cy_ada"],
        "bearer": ["--header", "authorization:Bearer cy_ada"],
        "variable": [],
    }
    failed: list[tuple[str, str, str]] = []
    for command in COMMANDS:
        for way, flags in ways.items():
            monkeypatch.setenv("CALLYARD_KEY", "cy_ada" if way == "variable" else "cy_wrong")
            status, out, err = callyard(*words_of(command, guarded), *flags)
            if status != 0 or not any(word in out for word in ("echo", "job_id", "hello", "allow")):
                failed.append((command[0], way, out + err))

    assert callyard("search", "echo", guarded, "--key", "cy_ada")[0] == 0
    assert failed == []


def test_refused_credentials_are_unauthenticated_and_nobody_there_is_unavailable(
    guarded: str, callyard: Run, unused_port: int
) -> None:
    nobody = f"http://127.0.0.1:{unused_port}/mcp"
    failed: list[tuple[str, ...]] = []
    for is_known in (False, True):
        if is_known:  # a stored catalogue must not hide that the credentials are refused
            assert callyard("list", guarded, "--key", "cy_ada")[0] == 0
        for command in COMMANDS:
            for address, flags, code in (
                (guarded, [], "unauthenticated"),
                (guarded, ["--key", "cy_wrong"], "unauthenticated"),
                (nobody, [], "upstream_unavailable"),
            ):
                status, out, err = callyard(*words_of(command, address), *flags)
                is_reported = f'"code":"{code}"' in out.replace(" ", "") if "--json" in command else bool(out + err)
                if status != exit_status(code) or not is_reported or "tool_not_found" in out:  # pyright: ignore[reportArgumentType] - a code
                    failed.append((command[0], code, str(status), out + err))

    assert failed == []


def test_a_tool_that_a_server_got_since_the_last_command_is_found(write: Write, callyard: Run) -> None:
    rest = "from callyard import Yard\nyard = Yard(tools=[{tools}])\n"
    tools = "def old() -> int:\n    'Old.'\n    return 1\ndef new() -> int:\n    'New.'\n    return 2\n"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def listed(names: str) -> tuple[list[str], int]:
        file = write(tools + rest.format(tools=names), "served.py")
        program = [sys.executable, "-m", "callyard", "serve", str(file), "--transport", "http", "--port", str(port)]
        with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=os.environ) as server:  # noqa: S603 - our own
            assert server.stderr is not None
            url = server.stderr.readline().rpartition("address=")[2].strip()
            called = callyard("call", url, "new")[0]
            out = callyard("list", url)[1]
            server.terminate()
        return [name for name in names_of(out) if name in {"old", "new"}], called

    assert listed("old") == (["old"], exit_status("tool_not_found"))
    assert listed("old, new") == (["new", "old"], 0)


def test_credentials_are_for_urls_alone(shop: str, callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_KEY", "cy_ada")

    assert callyard("list", shop)[0] == 0
    for flags in (["--key", "cy_ada"], ["--header", "X-API-Key:cy_ada"], ["--header", "nothing"]):
        assert callyard("list", shop, *flags)[0] == 2


@pytest.mark.parametrize("command", [["list"], ["serve"], ["search", "words"]])
def test_nothing_at_all_is_no_yard(command: list[str], callyard: Run, write: Write) -> None:
    write("[limits]\ndepth = 2", "callyard.toml")
    status, _, err = callyard(*command)

    assert status == 2
    assert "There is no TARGET" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("packs = ['sistem']", "There is no pack 'sistem'."),
        ("profile = 'x'\npacks = ['system']", "There is no profile 'x'."),
        ("[upstreams.yard]\ncommand = 'a'", "Two providers are named 'yard'"),
    ],
)
def test_a_wrong_target_is_reported_before_anything_starts(text: str, said: str, callyard: Run, write: Write) -> None:
    write(
        'from callyard import Yard\n\ndef look() -> str:\n    """Look."""\n    return "x"\n\nyard = '
        "Yard(tools=[look])\n",
        "own.py",
    )
    write(text, "callyard.toml")
    status, _, err = callyard("list", "own.py")

    assert status == 2
    assert said in err


def test_an_upstream_that_is_switched_off_needs_nothing(callyard: Run, write: Write) -> None:
    write("[upstreams.a]\ncommand = '${UNSET}'\nenabled = false", "callyard.toml")

    assert callyard("list", "--quiet") == (0, "", "")


def test_a_secret_that_everybody_can_read_is_reported_unless_quiet(yard_file: str, callyard: Run, write: Write) -> None:
    write("hush", "token").chmod(0o644)
    write(Path(yard_file).read_text() + "env = {TOKEN = 'secretref:file:token'}\n", "callyard.toml")

    assert "'token' holds a secret and everybody can read it" in callyard("list")[2]
    assert "holds a secret" not in callyard("list", "--quiet")[2]


def test_settings_are_read_from_one_file(yard_file: str, callyard: Run) -> None:
    status, _, err = callyard("list", yard_file, "--config", "other.toml")

    assert status == 2
    assert "'callyard.toml'" in err
    assert "'other.toml'" in err


def test_without_a_home_the_place_must_be_named(yard_file: str, callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(*_: object) -> Path:
        raise OSError(2, "There is no home directory")

    monkeypatch.setattr("callyard.providers.upstream.find_state_dir", homeless)
    status, _, err = callyard("list", yard_file)

    assert status == 2
    assert "'state_dir'" in err


@pytest.mark.parametrize("command", [["list"], ["search", "orders"], ["manifest"]])
def test_lists_do_not_wait_for_one_that_hangs(command: list[str], yard_file: str, callyard: Run) -> None:
    callyard("list", "--wait")
    with_a_hanging_one(yard_file)
    started = time.monotonic()
    status, out, err = callyard(*command)

    assert (status, "shop__list_orders" in out) == (0, True)
    assert "'hangs' offers nothing for now. It is being started. '--wait' waits until it answers." in err
    assert time.monotonic() - started < 30  # two seconds, and much room for a busy machine; it sleeps for 600


@pytest.mark.parametrize("name", ["nothing_like_it", "shop__nothing_like_it"])
@pytest.mark.parametrize("command", ["call", "describe"])
def test_a_tool_that_does_not_exist_is_unknown_although_an_upstream_hangs(
    command: str, name: str, yard_file: str, callyard: Run
) -> None:
    callyard("list", "--wait")
    with_a_hanging_one(yard_file)
    started = time.monotonic()
    status, out, _ = callyard(command, yard_file, name, "--json")

    assert (status != 0, json.loads(out)["error"]["code"]) == (True, "tool_not_found")
    assert time.monotonic() - started < 30  # two seconds, and much room for a busy machine; it sleeps for 600


def test_a_variable_that_is_not_set_keeps_no_other_upstream_from_being_used(yard_file: str, callyard: Run) -> None:
    with Path(yard_file).open("a") as file:
        file.write("[upstreams.poor]\ncommand = 'x'\nenv = {TOKEN = '${NOT_SET_HERE}'}\n")
    status, out, err = callyard("list", yard_file, "--wait")

    assert (status, "shop__list_orders" in names_of(out)) == (0, True)
    assert "'NOT_SET_HERE'" in err
    assert callyard("call", yard_file, "shop__echo", "text=hello")[0] == 0


def test_a_yard_whose_only_upstream_lacks_a_variable_says_why(callyard: Run, write: Write) -> None:
    write("[upstreams.poor]\ncommand = '${NOT_SET_HERE}'\n", "callyard.toml")
    status, out, err = callyard("list")

    assert (status, out, "'NOT_SET_HERE'" in err) == (2, "", True)
