"""LiveSettings settings: what changes in a file changes in the yard that is open, and nothing else does."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from shared_fixtures import TIMEOUT

from callyard import Yard
from callyard.cli.terminal import Terminal
from callyard.launch.build import apply_settings, make_authenticator, read_settings
from callyard.launch.errors import LaunchError
from callyard.launch.hangup import Hangup
from callyard.launch.reload import LiveSettings, read_start, stop
from callyard.providers import Provider, Publish
from callyard.providers.upstream.settings import ResolvedUpstream
from callyard.transports.auth import Refusal, ReplaceableAuthenticator, digest_of

Write = Callable[..., Path]
A = "[upstreams.a]\ncommand = 'a'\n"
B = "[upstreams.b]\ncommand = 'b'\n"


class Quiet:
    """An upstream that offers nothing."""

    def __init__(self, name: str, resolved: ResolvedUpstream) -> None:
        self.name = name
        self.settings, self.problem = resolved.settings, resolved.problem
        self.is_open = False

    @property
    def resolved(self) -> ResolvedUpstream:
        return ResolvedUpstream(self.settings, self.problem)

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        if self.settings.command == "broken":
            raise OSError("no")
        self.is_open = True
        yield
        self.is_open = False
        if self.settings.command == "clings":
            raise OSError("no")


@pytest.fixture(autouse=True)
def factory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make upstreams that need no program."""

    def make(upstreams: dict[str, ResolvedUpstream], **_: Any) -> list[Provider]:
        return [Quiet(name, resolved) for name, resolved in upstreams.items()]

    monkeypatch.setattr("callyard.launch.build.make_upstreams", make)


class Following:
    """A yard that is open, its file, and what was said of it."""

    def __init__(self, yard: Yard, live: LiveSettings, *, write: Write, said: Callable[[], str]) -> None:
        self.yard = yard
        self._live = live
        self._write = write
        self._said = said

    async def change(self, text: str) -> str:
        self._write(text, "callyard.toml")
        await self._live.reload()
        return self._said()

    def upstreams(self) -> dict[str, Any]:
        return {provider.name: provider for provider in self.yard.providers if isinstance(provider, Quiet)}


Follow = Callable[..., Any]


@pytest.fixture
def follow(write: Write, capsys: pytest.CaptureFixture[str]) -> Follow:
    @asynccontextmanager
    async def following(text: str, *, quiet: bool = False) -> AsyncGenerator[Following]:
        write(text, "callyard.toml")
        terminal = Terminal()
        terminal.quiet = quiet
        yard = Yard()

        def read() -> Any:
            return read_settings({}, terminal, path=None, in_code=True)

        config = read()
        apply_settings(yard, config, terminal)
        async with yard:
            live = LiveSettings(yard, config, terminal, read=read)
            yield Following(yard, live, write=write, said=lambda: capsys.readouterr().err)

    return following


async def test_only_what_differs_is_restarted(follow: Follow) -> None:
    async with follow(A + B) as yard:
        before = yard.upstreams()
        said = await yard.change(f"{A}call_seconds = 5\n{B}[upstreams.c]\ncommand = 'c'\n")
        after = yard.upstreams()

        assert said == "The settings were reloaded: 'c' added, 'a' restarted.\n"
        assert after["b"] is before["b"]
        assert (before["a"].is_open, before["b"].is_open) == (False, True)
        assert after["a"].settings.call_seconds == 5

        assert await yard.change(A) == "The settings were reloaded: 'a' restarted, 'b', 'c' removed.\n"
        assert list(yard.upstreams()) == ["a"]


async def test_apis_are_added_changed_and_removed(follow: Follow, tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "servers": [{"url": "https://a.example"}],
        "paths": {"/x": {"get": {}}},
    }
    (tmp_path / "api.json").write_text(json.dumps(document))
    api = f"[apis.shop]\ndocument = '{tmp_path / 'api.json'}'\n"
    async with follow(A) as yard:
        assert await yard.change(A + api) == "The settings were reloaded: 'shop' added.\n"
        assert yard.yard.registry.get("shop__get_x") is not None
        assert await yard.change(f"{A}{api}exclude = ['*']\n") == "The settings were reloaded: 'shop' restarted.\n"
        assert yard.yard.registry.get("shop__get_x") is None
        assert await yard.change(A) == "The settings were reloaded: 'shop' removed.\n"
    async with follow(A + api) as yard:
        assert await yard.change(A + api) == ""
        assert "NOPE" in await yard.change(f"{A}{api}headers = {{X = '${{NOPE}}'}}\n")


async def test_nothing_is_said_and_done_where_nothing_differs(follow: Follow) -> None:
    async with follow(A) as yard:
        before = yard.upstreams()

        assert await yard.change(f"# a remark\n{A}") == ""
        assert yard.upstreams() == before


async def test_a_secret_that_changed_restarts_what_uses_it(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "old")
    text = f"{A}env = {{TOKEN = '${{TOKEN}}'}}\n{B}"
    async with follow(text) as yard:
        monkeypatch.setenv("TOKEN", "new")

        assert await yard.change(text) == "The settings were reloaded: 'a' restarted.\n"
        assert yard.upstreams()["a"].settings.env["TOKEN"] == "new"  # noqa: S105 - no secret


async def test_an_upstream_that_is_switched_off_is_removed(follow: Follow) -> None:
    async with follow(A) as yard:
        assert await yard.change(f"{A}enabled = false") == "The settings were reloaded: 'a' removed.\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[upstreams.a", "The file 'callyard.toml' is not TOML"),
        (
            "[upstreams.a]\ncomand = 'a'",
            "'upstreams.a.comand' in 'callyard.toml' is not known. Did you mean 'command'?",
        ),
        ("profile = 'nobody'", "There is no profile 'nobody'."),
    ],
)
async def test_a_broken_file_changes_nothing_and_says_so_in_one_sentence(text: str, said: str, follow: Follow) -> None:
    async with follow(A) as yard:
        before = yard.upstreams()
        reported = await yard.change(text)

        assert reported.startswith(f"The settings are unchanged: {said}")
        assert reported.count("\n") == 1
        assert yard.upstreams() == before
        assert before["a"].is_open
        assert await yard.change(A + B) == "The settings were reloaded: 'b' added.\n"


async def test_a_variable_that_is_not_set_stops_only_its_upstream(follow: Follow) -> None:
    async with follow(A) as yard:
        reported = await yard.change(f"[upstreams.a]\ncommand = '${{UNSET}}'\n{B}")

        assert "'UNSET'" in reported
        assert {name: bool(upstream.problem) for name, upstream in yard.upstreams().items()} == {"a": True, "b": False}
        assert "'UNSET'" in await yard.change(f"# a remark\n[upstreams.a]\ncommand = '${{UNSET}}'\n{B}")
        assert await yard.change(A + B) == "The settings were reloaded: 'a' restarted.\n"


async def test_a_file_that_is_gone_changes_nothing(follow: Follow, tmp_path: Path) -> None:
    async with follow(A) as yard:
        (tmp_path / "callyard.toml").unlink()
        await yard._live.reload()

        assert yard._said() == "The settings are unchanged: The file 'callyard.toml' no longer exists.\n"
        assert yard.upstreams()["a"].is_open


async def test_profiles_change_at_once_and_go_with_the_file(follow: Follow) -> None:
    rules = "[toolsets.none]\nnames = ['nothing']\n[profiles.few]\ntoolsets = ['none']\n"
    async with follow("packs = ['system']\n") as yard:
        assert "ping" in [spec.name for spec in yard.yard.registry.visible(yard.yard.profile)]
        assert (
            await yard.change(f"packs = ['system']\nprofile = 'few'\n{rules}")
            == "The settings were reloaded: 'profile' changed.\n"
        )
        assert yard.yard.profile.name == "few"
        assert (await yard.yard.call("ping")).error.code == "tool_not_found"

        await yard.change("packs = ['system']\n")
        assert [profile.name for profile in yard.yard.profiles] == ["everything"]
        assert (await yard.yard.call("ping")).success


async def test_the_shape_of_a_profile_changes_at_once_and_that_of_the_yard_is_reported(follow: Follow) -> None:
    async with follow("profile = 'few'\n[profiles.few]\n") as yard:
        said = await yard.change("shape = 'plain'\nprofile = 'few'\n[profiles.few]\n")
        assert said.splitlines() == ["'shape' changed, which takes effect at the next start."]
        assert yard.yard.profile.shape is None

        await yard.change("profile = 'few'\n[profiles.few]\nshape = 'plain'\n")
        assert yard.yard.profile.shape == "plain"


async def test_limits_that_can_change_do_and_the_others_are_reported(follow: Follow) -> None:
    async with follow("[limits]\ndepth = 3\n") as yard:
        said = await yard.change("[limits]\ndepth = 2\nname_characters = 20\n[serve]\nport = 1\n")

        assert said.splitlines() == [
            "'serve.port', 'limits.name_characters' changed, which takes effect at the next start.",
            "The settings were reloaded: 'limits.depth' changed.",
        ]
        assert yard.yard.limits.depth == yard.yard.dispatcher._limits.depth == 2
        assert yard.yard.limits.name_characters == 48
        assert "'limits.depth'" in await yard.change("")


async def test_one_that_cannot_be_opened_or_closed_keeps_no_other_from_it(follow: Follow) -> None:
    async with follow("[upstreams.x]\ncommand = 'clings'\n") as yard:
        said = await yard.change(f"[upstreams.x]\ncommand = 'broken'\n{A}")

        assert "The upstream 'x' did not close cleanly: OSError" in said
        assert "The upstream 'x' cannot be opened: OSError" in said
        assert "The settings were reloaded: 'a' added.\n" in said
        assert list(yard.upstreams()) == ["a"]
        assert "'x' added" in await yard.change(f"[upstreams.x]\ncommand = 'a'\n{A}")


async def test_a_quiet_server_reports_only_mistakes(follow: Follow) -> None:
    async with follow(A, quiet=True) as yard:
        assert await yard.change(A + B) == ""
        assert "are unchanged" in await yard.change("[")


async def test_sighup_is_heard_while_settings_are_followed_and_no_longer(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGHUP)
    async with follow(A) as yard:
        heard, loop = asyncio.Event(), asyncio.get_running_loop()

        def read(_: LiveSettings) -> None:
            loop.call_soon_threadsafe(heard.set)
            raise LaunchError("No.")

        monkeypatch.setattr(LiveSettings, "_read", read)
        async with yard._live.watch(Hangup()):
            os.kill(os.getpid(), signal.SIGHUP)
            await heard.wait()
    assert signal.getsignal(signal.SIGHUP) == before


def test_settings_are_followed_in_a_thread_too_where_no_signal_is_heard(follow: Follow) -> None:
    async def main() -> list[str]:
        async with follow(A) as yard, yard._live.watch(Hangup()):
            return list(yard.upstreams())

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: asyncio.run(main())).result() == ["a"]


@contextmanager
def served(*flags: str) -> Generator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """Serve what the file names in a process of its own; what it says comes line by line."""
    program = [sys.executable, "-m", "callyard", "serve", *flags]
    with subprocess.Popen(  # noqa: S603 - our own
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        yield server, iter(server.stderr)
        server.terminate()
        assert server.stdin is not None
        server.stdin.close()
        for pipe in (server.stdout, server.stderr):
            assert pipe is not None
            pipe.read()


def until(lines: Iterator[str], text: str) -> str:
    return next(line for line in lines if text in line)


SHOP = "from callyard import Yard\nyard = Yard('shop')\n"
HTTP = ("--transport", "http", "--port", "0")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))


@pytest.mark.parametrize("flags", [(), HTTP])
def test_a_server_follows_its_file(flags: tuple[str, ...], write: Write, state: None) -> None:
    write("packs = ['system']", "callyard.toml")
    with served(*flags) as (server, lines):
        until(lines, "serving yard=yard")
        write("packs = ['system']\n[upstreams.a]\ncommand = 'false'\n", "callyard.toml")
        assert until(lines, "reloaded") == "The settings were reloaded: 'a' added.\n"
        write("packs = [", "callyard.toml")
        until(lines, "The settings are unchanged")
        write("packs = ['system']", "callyard.toml")
        assert until(lines, "reloaded") == "The settings were reloaded: 'a' removed.\n"
        assert server.poll() is None


@pytest.mark.parametrize("flags", [(), HTTP, (*HTTP, "--stateless", "--workers", "2")])
def test_sighup_reads_anew_what_did_not_change_in_the_file(flags: tuple[str, ...], write: Write, state: None) -> None:
    write("hush", "token").chmod(0o600)
    write("[upstreams.a]\ncommand = 'false'\nenv = {TOKEN = 'secretref:file:token'}\n", "callyard.toml")
    with served(*flags) as (server, lines):
        address = until(lines, "serving yard=yard").rpartition("address=")[2].strip()
        if flags:  # whichever worker answers hears signals, too
            asked = HTTPConnection(urlsplit(address).netloc)
            asked.request("GET", "/mcp")
            asked.getresponse().read()
            asked.close()
        write("hush hush", "token")
        server.send_signal(signal.SIGHUP)

        assert until(lines, "reloaded") == "The settings were reloaded: 'a' restarted.\n"
        assert server.poll() is None


@pytest.mark.parametrize("flags", [(), HTTP])
def test_sighup_while_a_server_starts_does_not_end_it(flags: tuple[str, ...], write: Write, not_ignored: None) -> None:
    write("target = 'shop.py'", "callyard.toml")
    write("import sys\nprint('loading', file=sys.stderr, flush=True)\nsys.stdin.readline()\n" + SHOP, "shop.py")
    with served(*flags) as (server, lines):
        until(lines, "loading")
        server.send_signal(signal.SIGHUP)
        assert server.stdin is not None
        server.stdin.write("go\n")
        server.stdin.flush()

        until(lines, "serving yard=shop")
        assert server.poll() is None


@pytest.fixture
def not_ignored() -> Generator[None]:
    """Let programs end on SIGHUP, also where whoever runs the tests ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_without_a_file_sighup_ends_a_server_as_it_ends_other_programs(shop: str, not_ignored: None) -> None:
    with served(shop, *HTTP) as (server, lines):
        until(lines, "serving yard=shop")
        server.send_signal(signal.SIGHUP)

        assert server.wait() == -signal.SIGHUP


def test_a_server_ends_when_its_terminal_is_gone(write: Write) -> None:
    write("packs = ['system']", "callyard.toml")
    ours, theirs = os.openpty()
    program = [sys.executable, "-m", "callyard", "serve", *HTTP]
    with subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as server:  # noqa: S603 - our own
        os.close(theirs)
        said = b""
        while b"http://" not in said:
            said += os.read(ours, 4096)
        os.close(ours)
        server.send_signal(signal.SIGHUP)

        assert server.wait() == 0


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have it ignored
from callyard.cli import main
sys.exit(main())
"""
APP = """
from callyard import Yard
from callyard.launch.serve import serve
yard = Yard("first")
if __name__ == "__main__":
    serve(yard, reload=True, transport="http", port=0)
"""


@contextmanager
def watched(*program: str) -> "Generator[subprocess.Popen[str]]":
    command = [
        sys.executable,
        *(program or ("-c", PROGRAM, "serve", "app.py", "--transport", "http", "--port", "0", "--reload")),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
        try:
            yield process
        finally:
            process.terminate()


def next_line(process: "subprocess.Popen[str]", *, like: str) -> str:
    """Return the next line that holds the text."""
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if like in line:
            return line
    raise AssertionError("".join(said))


def is_listening(line: str) -> bool:
    address = urlsplit(line.rpartition("address=")[2].strip())
    with socket.socket() as client:
        return client.connect_ex((address.hostname, address.port)) == 0


PLAIN_APP = """
from callyard import Yard
from callyard.launch.serve import serve
serve(Yard("plain"), port=0{arguments})
"""


@pytest.mark.parametrize(
    ("arguments", "transport"), [("", "http"), (", transport='stdio'", "stdio"), (", config='callyard.toml'", "http")]
)
def test_a_program_says_which_file_chose_its_transport(
    arguments: str, transport: str, write: Write, state: None
) -> None:
    write("[serve]\ntransport = 'http'\n", "callyard.toml")
    write(PLAIN_APP.format(arguments=arguments))
    command = [sys.executable, "app.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if "serving yard=plain" in line:
                break
        process.terminate()

    assert f"transport={transport}" in said[-1]
    assert any("'callyard.toml' says so" in line for line in said) is (not arguments)


@pytest.mark.parametrize("program", [(), ("app.py",)], ids=["command", "program"])
def test_a_change_starts_the_server_anew(program: tuple[str, ...], write: Write) -> None:
    write(APP)
    with watched(*program) as process:
        first = next_line(process, like="serving yard=first")
        write(APP.replace("first", "second"))
        assert "'app.py' changed" in next_line(process, like="changed")
        second = next_line(process, like="serving yard=second")
        assert first.rpartition("address=")[2] == second.rpartition("address=")[2]
        assert is_listening(second)
        process.terminate()
        process.wait()

        assert process.returncode == 0
        assert not is_listening(second)


def test_an_address_of_another_machine_is_reported_by_the_server(write: Write) -> None:
    write(APP)
    with watched(
        "-c", PROGRAM, "serve", "app.py", "--transport", "http", "--port", "0", "--host", "192.0.2.1", "--reload"
    ) as process:
        assert "'192.0.2.1' can be reached from other machines" in next_line(process, like="callyard: ")


def test_files_that_come_and_go_beside_the_yard_count_and_others_do_not(write: Write) -> None:
    write(APP)
    for place in (".hidden", "__pycache__", "environment", "inside"):
        Path(place).mkdir()
    Path("environment/pyvenv.cfg").touch()
    Path("broken.py").symlink_to("nowhere.py")
    with watched() as process:
        next_line(process, like="serving yard=first")
        for path in ("note.txt", ".hidden/a.py", "__pycache__/a.py", "environment/a.py"):
            Path(path).touch()
        Path("inside/settings.toml").touch()
        assert "'inside/settings.toml' changed" in next_line(process, like="changed")
        next_line(process, like="serving yard=first")
        Path("inside/settings.toml").unlink()
        assert "'inside/settings.toml' changed" in next_line(process, like="changed")


def test_a_mistake_is_reported_and_its_correction_starts_the_server(write: Write) -> None:
    write("yard = (")
    with watched() as process:
        assert "SyntaxError" in next_line(process, like="cannot be loaded")
        assert "status 2" in next_line(process, like="ended")
        write(APP)
        next_line(process, like="serving yard=first")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_the_server_ends_with_the_program_that_watches(number: signal.Signals, status: int, write: Write) -> None:
    write(APP)
    with watched() as process:
        line = next_line(process, like="serving yard=first")
        process.send_signal(number)
        process.communicate()  # the server has the same stderr, so this ends when both have

        assert process.returncode == status
        assert not is_listening(line)


async def test_a_server_that_does_not_end_is_ended() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", deaf, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    await server.stdout.readline()

    await stop(server, 0)
    await stop(server, 0)

    assert server.returncode == -signal.SIGKILL


def test_the_reason_of_a_start_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CALLYARD_RELOAD", "again")

    assert (read_start(), read_start()) == ("again", "")
    assert "_CALLYARD_RELOAD" not in os.environ


KEYS = """
packs = ['system']
[auth]
api_keys = [
    {{name = "first", digest = "{first}"}},
    {second}
]
"""


def keys_file(*, second: bool) -> str:
    entry = f'{{name = "second", digest = "{digest_of("cy_second")}"}}' if second else ""
    return KEYS.format(first=digest_of("cy_first"), second=entry)


def open_stream(netloc: str, key: str) -> "tuple[HTTPConnection, Any]":
    """Subscribe with a key, and return the connection and its open response."""
    version = "io.modelcontextprotocol/protocolVersion"
    about: dict[str, Any] = {version: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"_meta": about, "notifications": {"toolsListChanged": True}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Accept": "text/event-stream"}
    headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"}
    connection = HTTPConnection(netloc, timeout=TIMEOUT)
    connection.request("POST", "/mcp", json.dumps(message), headers)
    response = connection.getresponse()
    assert response.status == 200
    response.readline()
    return connection, response


def status_with(netloc: str, key: str) -> int:
    connection = HTTPConnection(netloc, timeout=TIMEOUT)
    connection.request("GET", "/mcp", headers={"X-API-Key": key})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize("flags", [HTTP, (*HTTP, "--stateless", "--workers", "2")])
def test_a_key_that_is_removed_from_the_file_is_refused_and_its_streams_end(
    flags: tuple[str, ...], write: Write, state: None
) -> None:
    write(keys_file(second=True), "callyard.toml")
    with served(*flags) as (server, lines):
        netloc = urlsplit(until(lines, "serving yard=yard").rpartition("address=")[2].strip()).netloc
        (first, _), (second, stream) = (open_stream(netloc, f"cy_{name}") for name in ("first", "second"))

        write(keys_file(second=False), "callyard.toml")
        with suppress(HTTPException, ConnectionError):
            stream.read()  # until its end

        for _ in range(server_count(flags)):
            until(lines, "'auth.api_keys' changed")
        assert {status_with(netloc, "cy_second") for _ in range(8)} == {401}
        assert {status_with(netloc, "cy_first") for _ in range(8)} == {405 if "--stateless" in flags else 406}
        assert not has_ended(first)
        for connection in (first, second):
            connection.close()

        write("packs = ['system']", "callyard.toml")
        until(lines, "every caller is refused")
        assert server.poll() is None


def test_a_worker_that_is_started_again_refuses_a_key_that_was_removed_before(write: Write, state: None) -> None:
    write(keys_file(second=True), "callyard.toml")
    with served(*HTTP, "--stateless", "--workers", "2") as (server, lines):
        netloc = urlsplit(until(lines, "serving yard=yard").rpartition("address=")[2].strip()).netloc
        write(keys_file(second=False), "callyard.toml")
        for _ in range(2):
            until(lines, "'auth.api_keys' changed")

        for worker in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
            os.kill(int(worker), signal.SIGKILL)

        assert {status_with(netloc, "cy_second") for _ in range(8)} == {401}
        assert {status_with(netloc, "cy_first") for _ in range(8)} == {405}


def keyed(write: Write, text: str) -> tuple[Yard, LiveSettings, Callable[[str], bool]]:
    """Return a yard that is not open yet, its live settings, and whether a key is accepted."""
    write(text, "callyard.toml")
    terminal, yard = Terminal(), Yard()

    def read() -> Any:
        return read_settings({}, terminal, path=None, in_code=True)

    config = read()
    apply_settings(yard, config, terminal)
    found = make_authenticator(config)
    assert found is not None
    authenticator = ReplaceableAuthenticator(found)

    def accepts(key: str) -> bool:
        try:
            asyncio.run(authenticator.admit(None, key))
        except Refusal:
            return False
        return True

    return yard, LiveSettings(yard, config, terminal, read=read, authenticator=authenticator), accepts


def test_a_process_that_forks_workers_keeps_the_last_settings_that_were_right_and_says_nothing(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    yard, live, accepts = keyed(write, keys_file(second=True))
    live.follow()
    assert accepts("cy_second")

    write(keys_file(second=False) + "[limits]\njob_ttl = 7\n" + A, "callyard.toml")
    live.follow()
    assert accepts("cy_second")  # the file may still be incomplete
    live.follow()
    assert (accepts("cy_first"), accepts("cy_second"), yard.limits.job_ttl) == (True, False, 7)

    write("[auth", "callyard.toml")
    live.follow()
    live.follow()
    assert (accepts("cy_first"), accepts("cy_second")) == (True, False)
    assert capsys.readouterr().err == ""

    async def opened() -> None:
        write(keys_file(second=False) + A, "callyard.toml")
        async with yard:
            await live.reload()
            assert [provider.name for provider in yard.providers if isinstance(provider, Quiet)] == ["a"]

    asyncio.run(opened())


def test_a_file_that_is_written_again_and_again_is_read_nevertheless(write: Write) -> None:
    _, live, accepts = keyed(write, keys_file(second=True))
    for number in range(2):
        write(keys_file(second=False) + f"# {number}\n", "callyard.toml")
        live.follow()

    assert (accepts("cy_first"), accepts("cy_second")) == (True, False)


def test_a_change_during_the_start_of_a_server_is_applied_before_it_serves(write: Write) -> None:
    yard, live, accepts = keyed(write, keys_file(second=True))

    async def open_and_watch() -> None:
        write(keys_file(second=False), "callyard.toml")
        async with yard, live.watch(Hangup()):
            pass

    asyncio.run(open_and_watch())
    assert (accepts("cy_first"), accepts("cy_second")) == (True, False)


def has_ended(connection: HTTPConnection) -> bool:
    """Return whether the server closed a connection."""
    assert connection.sock is not None
    connection.sock.setblocking(False)  # noqa: FBT003 - the socket's own interface
    try:
        return not connection.sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False


def server_count(flags: tuple[str, ...]) -> int:
    return 2 if "--workers" in flags else 1


async def test_a_slow_upstream_does_not_delay_the_change_of_a_key(
    follow: Follow, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    closing, may_close = asyncio.Event(), asyncio.Event()

    async def remove(name: str) -> None:
        closing.set()
        await may_close.wait()

    async with follow(A) as yard:
        monkeypatch.setattr(yard.yard.providers, "remove", remove)
        monkeypatch.setattr("callyard.launch.reload._POLL_S", 0.001)
        async with yard._live.watch(Hangup()):
            write("profile = 'everything'\n", "callyard.toml")
            await closing.wait()
            write("[limits]\njob_ttl = 7\n", "callyard.toml")
            async with asyncio.timeout(TIMEOUT):
                while yard.yard.limits.job_ttl != 7:  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.002)  # a polling interval
            may_close.set()
