"""`callyard serve`: a yard over stdio and HTTP in processes of its own, and what it says when it cannot be served."""

import errno
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from callyard.config.settings import Serving
from callyard.launch.serve import serve
from callyard.launch.signals import run
from callyard.model.spec import PublishError
from callyard.transports import Address
from callyard.transports.auth import AnyOf, ApiKey, ApiKeys, Authenticator, ReplaceableAuthenticator, Tokens, digest_of
from callyard.yard import Yard

Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., Path]
Process = Callable[..., "subprocess.CompletedProcess[str]"]

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have it ignored
from callyard.cli import main
sys.exit(main())
"""
APP = """
import sys
from callyard import Profile, Toolset, Yard, tool
from callyard.launch.serve import serve

@tool(operation="query")
def greet() -> str:
    '''Say hello.'''
    print("a print of the tool")
    return "hello"

print("a print of the module")
readers = Profile(name="readers", toolsets=(Toolset(name="q", operations=("query",)),))
yard = Yard("app", tools=[greet], profiles=[readers])
if __name__ == "__main__":
    serve(yard, **eval(sys.argv[1]))
"""
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
GREET: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "greet", "arguments": {}},
}
KEY = "cy_test"


@contextmanager
def begun(
    *arguments: str, program: tuple[str, ...] = ("-c", PROGRAM, "serve"), **environment: str
) -> "Generator[subprocess.Popen[str]]":
    command = [sys.executable, *program, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(  # noqa: S603 - our own
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def address_of(process: "subprocess.Popen[str]") -> str:
    """Return where a server listens, once it says so."""
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if " serving yard=" in line:
            return line.rpartition("address=")[2].strip()
    raise AssertionError("".join(said))


def post(address: str, **headers: str) -> int:
    sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers}
    request = urllib.request.Request(address, json.dumps(HELLO).encode(), sent)  # noqa: S310 - the loopback address
    try:
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - the same
            assert '"serverInfo"' in response.read().decode()
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


class Listening:
    """A transport that listens nowhere."""

    name = "http"

    def info(self) -> Address:
        return Address("http", "http://127.0.0.1:1/mcp")

    async def serve(self, yard: Yard) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


class Served:
    """Stands in for serving: notes what would be served, and fails if told to."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.listens = False
        self.calls: list[tuple[Yard, Serving, Authenticator | None]] = []

    def __call__(
        self,
        yard: Yard,
        serving: Serving,
        authenticator: Authenticator | None,
        *,
        ready: Callable[[Any], None],
        **others: object,
    ) -> None:
        self.calls.append((yard, serving, authenticator))
        run(self._serve(yard, ready))

    async def _serve(self, yard: Yard, ready: Callable[[Any], None]) -> None:
        async with yard:
            if self.listens:
                ready(Listening())
            if self.error is not None:
                raise self.error


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, write: Write) -> Served:
    write(APP)
    stand_in = Served()
    monkeypatch.setattr("callyard.launch.serve.run_server", stand_in)
    return stand_in


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what the tests raise for our own."""
    monkeypatch.setattr("callyard.launch.serve.is_own", bool)


def test_over_stdio_stdout_holds_the_protocol_alone_and_the_end_of_input_ends_it(
    write: Write, in_process: Process
) -> None:
    write(APP)
    messages = [HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}, GREET]
    done = in_process("serve", "app.py", stdin="".join(json.dumps(message) + "\n" for message in messages))

    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["structuredContent"]["data"] == "hello"
    assert "a print of the module\n" in done.stderr
    assert "a print of the tool\n" in done.stderr
    assert done.stderr.count(" serving yard=app transport=stdio ") == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_over_http_it_serves_until_a_signal_ends_it(number: signal.Signals, status: int, write: Write) -> None:
    write(APP)
    with begun("app.py", "--transport", "http", "--port", "0") as process:
        address = address_of(process)
        answered = post(address)
        process.send_signal(number)
        out, err = process.communicate()

    assert address.startswith("http://127.0.0.1:")
    assert not address.startswith("http://127.0.0.1:0/")
    assert answered == 200
    assert (process.returncode, out) == (status, "")
    assert "Traceback" not in err


def test_a_file_can_say_it_all(write: Write) -> None:
    write(APP)
    keys = f'[{{name = "ci", digest = "{digest_of(KEY)}", profile = "readers"}}]'
    write(f'target = "app.py"\n[serve]\ntransport = "http"\nport = 0\n[auth]\napi_keys = {keys}\n', "callyard.toml")
    with begun() as process:
        address = address_of(process)
        statuses = [post(address), post(address, Authorization=f"Bearer {KEY}")]
        process.terminate()
        process.communicate()

    assert statuses == [401, 200]


def test_a_taken_port_is_named_with_the_way_out(write: Write, callyard: Run) -> None:
    write(APP)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, _, err = callyard("serve", "app.py", "--transport", "http", "--port", port)

    assert status == 2
    assert f"Port {port} of '127.0.0.1' is in use." in err
    assert "'--port 0'" in err


def test_others_are_not_served_without_authentication(write: Write, callyard: Run) -> None:
    write(APP)
    status, _, err = callyard("serve", "app.py", "--transport", "http", "--port", "0", "--host", "0.0.0.0")  # noqa: S104 - it is refused

    assert status == 2
    assert "'[auth]'" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "There is no TARGET"),
        (["app.py", "--transport", "pigeon"], "There is no transport 'pigeon'."),
        (["app.py", "--workers", "2"], "'stateless'"),
        (["app.py", "--port", "9000"], "'--port' needs '--transport http'"),
        (["app.py", "--json-response"], "'--json-response' needs '--transport http'"),
        (["app.py", "--transport", "sse", "--stateless"], "'--stateless' needs '--transport http': 'sse' ignores it."),
        (["app.py", "--metrics"], "'--metrics' needs '--transport http'"),
        (
            ["app.py", "--transport", "sse", "--access-log", "x"],
            "'--access-log' needs '--transport http': 'sse' ignores it.",
        ),
        (["app.py", "--audit-log", "app.py/x"], "app.py' cannot be used: File exists."),
        (["app.py", "--transport", "http", "--workers", "2", "--stateless", "--metrics"], "'metrics' needs one worker"),
        (["app.py", "--reload"], "'--reload' needs '--transport http'"),
        (["app.py", "--reload", "--transport", "http", "--workers", "2", "--stateless"], "contradict each other"),
        (["app.py", "--port", "many"], "'--port' must be a whole number"),
        (["app.py", "--profile", "nobody"], "There is no profile 'nobody'. Known: 'everything', 'readers'."),
        (["app.py", "--config", "nowhere.toml"], "'nowhere.toml'"),
        (["nowhere.py"], "There is no file 'nowhere.py'."),
        (["app.py", "more"], "'more' is one argument too many"),
        (["app.py", "--stateles"], "Did you mean '--stateless'?"),
    ],
)
def test_an_impossible_setting_is_one_sentence(arguments: list[str], said: str, write: Write, callyard: Run) -> None:
    write(APP)
    status, out, err = callyard("serve", *arguments)

    assert (status, out) == (2, "")
    assert said in err.splitlines()[-1]


def test_flags_reach_the_server(served: Served, callyard: Run) -> None:
    flags = [
        "--transport",
        "http",
        "--host",
        "::1",
        "--port",
        "1",
        "--stateless",
        "--json-response",
        "--session-timeout",
        "2",
    ]
    more = ["--tls-cert", "c", "--tls-key", "k", "--workers", "3", "--socket", "s"]

    assert callyard("serve", "app.py", *flags, *more)[0] == 0
    assert served.calls[0][1] == Serving(
        transport="http",
        host="::1",
        port=1,
        stateless=True,
        json_response=True,
        session_timeout=2,
        tls_cert="c",
        tls_key="k",
        workers=3,
        socket="s",
    )


def test_settings_reach_the_yard_and_the_others_stay_as_in_its_code(
    served: Served, write: Write, callyard: Run
) -> None:
    write(
        APP.replace("tools=[greet],", "tools=[greet], limits=Limits(timeout=7, depth=3), allow_eval=True,").replace(
            "import Pro", "import Limits, Pro"
        )
    )
    write("profile = 'readers'\n[limits]\ndepth = 2", "callyard.toml")

    assert callyard("serve", "app.py")[0] == 0
    yard, _, authenticator = served.calls[0]
    assert (yard.limits.timeout, yard.limits.depth) == (7, 2)
    assert yard.profile.name == "readers"
    assert [yard.settings()[name]["from"] for name in ("timeout", "depth", "profile", "slow")] == [
        "code",
        "file callyard.toml",
        "file callyard.toml",
        "default",
    ]
    assert yard.registry.allow_eval
    assert authenticator is None


@pytest.mark.parametrize(("flag", "allowed"), [("--allow-eval", True), ("--no-allow-eval", False)])
def test_eval_tools_are_allowed_as_the_flag_says(
    flag: str,
    allowed: bool,  # noqa: FBT001 - the value under test
    served: Served,
    write: Write,
    callyard: Run,
) -> None:
    write("allow_eval = true", "callyard.toml")

    assert callyard("serve", "app.py", flag)[0] == 0
    assert served.calls[0][0].registry.allow_eval is allowed


@pytest.mark.parametrize(
    ("auth", "kind"),
    [
        (f"api_keys = [{{name = 'ci', digest = '{digest_of(KEY)}'}}]", ApiKeys),
        ("issuer = 'https://example.com'\naudience = 'yard'", Tokens),
        (
            (
                "issuer = 'https://example.com'\naudience = 'yard'\napi_keys = "
                f"[{{name = 'ci', digest = '{digest_of(KEY)}'}}]"
            ),
            AnyOf,
        ),
    ],
)
def test_authentication_becomes_a_guard(auth: str, kind: type, served: Served, write: Write, callyard: Run) -> None:
    write(f"[auth]\n{auth}", "callyard.toml")

    assert callyard("serve", "app.py", "--transport", "http")[0] == 0
    guard = served.calls[0][2]
    assert isinstance(guard, ReplaceableAuthenticator)
    assert isinstance(guard.current, kind)
    assert callyard("serve", "app.py", "--transport", "stdio")[0] == 0
    assert served.calls[1][2] is None


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ("api_keys = []", "accepts nobody"),
        ("identity_claim = 'email'", "accepts nobody"),
        ("scopes = ['a']", "'issuer'"),
        ("issuer = 'https://example.com'", "'audience'"),
        ("api_keys = [{name = 'ci', digest = 'cy_secret'}]", "'sha256:'"),
        (
            f"api_keys = [{{name = 'ci', digest = '{digest_of(KEY)}', profile = 'nobody'}}]",
            "There is no profile 'nobody'.",
        ),
        (
            "issuer = 'https://example.com'\naudience = 'yard'\nprofiles = {'*' = 'nobody'}",
            "There is no profile 'nobody'.",
        ),
    ],
)
def test_authentication_that_cannot_work_is_refused(
    auth: str, said: str, served: Served, write: Write, callyard: Run
) -> None:
    write(f"[auth]\n{auth}", "callyard.toml")
    status, _, err = callyard("serve", "app.py", "--transport", "http")

    assert (status, served.calls) == (2, [])
    assert said in err
    assert "cy_secret" not in err


@pytest.mark.parametrize(
    ("error", "flags", "said"),
    [
        (ValueError("It makes no sense."), [], "It makes no sense."),
        (ImportError("Install it."), [], "Install it."),
        (PublishError("The tool is wrong."), [], "The tool is wrong."),
        (ExceptionGroup("many", [ExceptionGroup("more", [ValueError("Inside.")])]), [], "Inside."),
        (OSError(errno.EADDRINUSE, "In use"), [], "Port 8321 of '127.0.0.1' is in use."),
        (OSError(errno.EADDRINUSE, "In use"), ["--socket", "s"], "The socket 's' cannot be listened on: In use."),
        (
            OSError(errno.EACCES, "Not allowed"),
            ["--port", "80"],
            "The port 80 of '127.0.0.1' cannot be listened on: Not allowed.",
        ),
        (OSError("strange."), [], "cannot be listened on: strange."),
        (FileNotFoundError(errno.ENOENT, "Nowhere", "c.pem"), [], "The file 'c.pem' cannot be used: Nowhere."),
        (
            OSError(errno.EINVAL, "Wrong"),
            ["--tls-cert", "c", "--tls-key", "k"],
            "The certificate 'c' and its key 'k' cannot be used: Wrong.",
        ),
    ],
)
@pytest.mark.usefixtures("ours")
def test_why_it_cannot_be_served_is_one_sentence(
    error: Exception, flags: list[str], said: str, served: Served, callyard: Run
) -> None:
    served.error = error
    status, _, err = callyard("serve", "app.py", "--transport", "http", *flags)

    assert status == 2
    assert said in err.splitlines()[-1]


def test_a_failure_of_the_yard_itself_is_reported_with_its_place(write: Write, callyard: Run) -> None:
    fails = (
        "from contextlib import asynccontextmanager\n\n"
        "@asynccontextmanager\nasync def fail(yard):\n    raise ValueError('no')\n    yield\n"
    )
    write(fails + APP.replace("tools=[greet],", "tools=[greet], lifespan=fail,"))
    status, _, err = callyard("serve", "app.py")

    assert status == 2
    assert err.splitlines()[-1] == "callyard: The yard 'app' cannot be opened: ValueError in 'app.py', line 5: no."


def test_a_failure_while_it_serves_is_a_defect(served: Served, callyard: Run) -> None:
    served.listens = True
    served.error = KeyError("lost")
    status, _, err = callyard("serve", "app.py")

    assert status == 1
    assert "The server of 'app' failed: KeyError" in err


def test_calls_are_logged_when_asked_for(write: Write, in_process: Process) -> None:
    write(APP)
    done = in_process("serve", "app.py", "-v", stdin="".join(json.dumps(message) + "\n" for message in [HELLO, GREET]))

    assert " call tool=greet " in done.stderr


def test_quiet_says_nothing(write: Write, in_process: Process) -> None:
    write(APP.replace('print("a print of the module")', ""))

    assert in_process("serve", "app.py", "--quiet").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--transport", "http", "--port", "0"],
            ["\x1b[32mhttp://127.0.0.1:", "claude mcp add --transport http app http://127.0.0.1:"],
        ),
        (
            ["--profile", "readers", "--no-allow-eval"],
            ["over stdio", " -- ", "app.py --profile readers --no-allow-eval"],
        ),
    ],
)
def test_a_terminal_shows_how_to_connect(arguments: list[str], expected: list[str], write: Write) -> None:
    path = write(APP)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, "serve", "app.py", *arguments]
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(  # noqa: S603 - our own
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**plain, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        shown = ""
        while "Any MCP client" not in shown:
            shown += os.read(ours, 4096).decode()
        process.send_signal(signal.SIGINT)
    os.close(ours)

    assert process.returncode == 130
    assert all(text in shown for text in expected)
    assert " serving yard=" not in shown
    assert str(path) in shown or "http" in arguments


def test_a_client_starts_the_same_from_anywhere(
    served: Served, write: Write, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def note(
        yard: Yard, config: object, terminal: object, *, command: Callable[[], list[str]], **others: object
    ) -> None:
        commands.append(command())

    monkeypatch.setattr("callyard.cli.serve.serve_configured", note)
    monkeypatch.setattr("shutil.which", str)
    folder = Path.cwd()
    write('target = "app.py"', "callyard.toml")
    for arguments in (["app.py:yard", "--config", "callyard.toml"], ["app:yard"], []):
        assert callyard("serve", *arguments)[0] == 0
    monkeypatch.setattr("shutil.which", dict[str, str]().get)
    callyard("serve", "app.py")

    assert commands == [
        ["callyard", "serve", f"{folder}/app.py:yard", "--config", f"{folder}/callyard.toml"],
        ["callyard", "serve", "app:yard"],
        ["callyard", "serve", "--config", f"{folder}/callyard.toml"],
        [sys.executable, "-m", "callyard", "serve", f"{folder}/app.py"],
    ]


def test_serving_over_stdio_loads_nothing_that_is_for_http(write: Write) -> None:
    write(APP)
    code = (
        "import sys; from callyard.cli import main; "
        "main(['serve', 'app.py', '-q']); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )

    assert {"uvicorn", "jwt", "pydantic", "callyard.transports.http"}.isdisjoint(done.stderr.split())


def test_a_program_is_a_server(write: Write) -> None:
    write(APP)
    with begun("{'transport': 'http'}", program=("app.py",), CALLYARD_PORT="0") as process:
        address = address_of(process)
        answered = post(address)
        process.send_signal(signal.SIGTERM)
        process.communicate()

    assert (answered, process.returncode) == (200, 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("{'port': '1'}", "'port' must be a whole number."),
        ("{'transport': 'pigeon'}", "There is no transport 'pigeon'."),
        ("{'config': 'nowhere.toml'}", "'nowhere.toml'"),
    ],
)
def test_a_program_that_serves_wrongly_ends_with_one_sentence(settings: str, said: str, write: Write) -> None:
    write(APP)
    done = subprocess.run([sys.executable, "app.py", settings], capture_output=True, text=True, check=False)  # noqa: S603 - our own

    assert done.returncode == 2
    assert done.stderr.startswith("callyard: ")
    assert said in done.stderr


@pytest.mark.parametrize("name", ["prot", "target"])
def test_a_program_gives_serve_no_argument_that_it_does_not_have(name: str) -> None:
    given: dict[str, Any] = {name: "app.py"}
    with pytest.raises(TypeError, match=name):
        serve(Yard(), **given)


def test_a_program_brings_its_own_guard_and_logging(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    own = ApiKeys([ApiKey("ci", digest_of(KEY))])
    served.listens = True
    serve(Yard("mine"), authenticator=own, transport="http", allow_eval=True, allowed_hosts=["a"])

    yard, serving, authenticator = served.calls[0]
    assert authenticator is own
    assert yard.registry.allow_eval
    assert serving == Serving(transport="http", allowed_hosts=("a",))
    assert "serving yard=mine" in caplog.text


def test_ctrl_c_ends_a_program_with_its_status(served: Served) -> None:
    served.error = KeyboardInterrupt()
    with pytest.raises(SystemExit) as ended:
        serve(Yard("mine"))

    assert ended.value.code == 130


def test_headers_that_go_on_to_an_upstream_are_not_shown_to_handlers(
    served: Served, write: Write, callyard: Run
) -> None:
    write(
        '[serve]\nrequest_headers = ["X-Trace"]\n[upstreams.a]\nurl = "http://127.0.0.1:9"\nforward_headers = '
        '["Authorization"]\n',
        "t.toml",
    )
    assert callyard("serve", "t.toml")[0] == 0

    assert served.calls[0][1].request_headers == ("X-Trace",)


async def test_inside_an_event_loop_there_is_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        serve(Yard("mine"))

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("callyard: 'serve' runs an event loop of its own")


LARGE = """
from callyard import Yard, tool

@tool(operation="query")
def large() -> str:
    '''Return a large result.'''
    return "x" * 100_000

@tool(operation="query")
def size(text: str) -> int:
    '''Count characters.'''
    return len(text)

yard = Yard(tools=[large, size])
"""


def test_a_handle_of_one_stdio_connection_is_unknown_to_the_next(write: Write, in_process: Process) -> None:
    write(LARGE)

    def answer(name: str, arguments: dict[str, Any]) -> Any:
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        messages = [HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}, call]
        done = in_process("serve", "app.py", stdin="".join(json.dumps(message) + "\n" for message in messages))
        return json.loads(done.stdout.splitlines()[1])["result"]["structuredContent"]

    handle = answer("large", {})["data"]["handle"]

    assert answer("size", {"text": {"$ref": handle}})["error"]["code"] == "invalid_input"


def test_a_store_that_was_asked_for_and_cannot_be_used_is_one_sentence(write: Write, callyard: Run) -> None:
    write(LARGE)
    write("no database" * 1000, "broken.db")
    status, _, said = callyard("serve", "app.py", "--store", "sqlite:broken.db")

    assert status == 2
    assert "broken.db" in said.splitlines()[-1]
