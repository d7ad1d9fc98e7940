"""The doctor: many broken set-ups, each with its finding and what mends it, and healthy ones without any."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from redis_programs import NEEDS_REDIS, Program, free_port

from callyard.cli import main
from callyard.launch.doctor import FINDINGS, Finding, check_packages

YARD = """
from callyard import Yard, tool
@tool(operation="query")
def {name}(text: str) -> str:
    'Answer with the text.'
    return text
yard = Yard("shop", tools=[{name}])
"""
UPSTREAM = f"{YARD.format(name='echo')}\nfrom callyard import serve\nserve(yard)\n"
TARGET = 'target = "shop.py"\n'
HTTP = '[serve]\ntransport = "http"\n'
NGINX = shutil.which("nginx")


class Setup:
    """A folder with a yard and its settings, and what is closed after the check."""

    def __init__(self, folder: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.stack = stack
        self.patch = monkeypatch
        self.settings(TARGET)
        self.file("shop.py", YARD.format(name="echo"))

    def file(self, name: str, text: str, mode: int = 0o600) -> Path:
        """Write a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def settings(self, text: str) -> None:
        """Write the settings; the state is in this folder."""
        self.file("callyard.toml", f'state_dir = "{self.folder / "state"}"\n{text}')

    def upstream(self, **entry: Any) -> None:
        """Write the settings of a yard with one upstream."""
        lines = [f"{key} = {json.dumps(value)}" for key, value in entry.items() if key != "env"]
        env = [f"{key} = {json.dumps(value)}" for key, value in entry.get("env", {}).items()]
        tail = ["[upstreams.back.env]", *env] if env else []
        self.settings("\n".join(["[upstreams.back]", *lines, *tail, ""]))

    def answering(self, status: int, body: str = "", headers: dict[str, str] | None = None) -> str:
        """Return the URL of a server that always answers so."""

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.do_GET()

            def do_GET(self) -> None:
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_DELETE = do_GET  # noqa: N815 - http.server's own name

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
                """Log nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.stack.callback(server.server_close)
        self.stack.callback(thread.join)
        self.stack.callback(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}/mcp"

    def taken_port(self) -> int:
        """Return a port that another program has."""
        return self.stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]

    def certificate(self, *, days: float, other_key: bool = False) -> None:
        """Write the settings of a server with a certificate that ends then."""
        cert, key = self.folder / "cert.pem", self.folder / "key.pem"
        private = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
        ends = datetime.now(UTC) + timedelta(days=days)
        made = x509.CertificateBuilder(
            issuer_name=name,
            subject_name=name,
            public_key=private.public_key(),
            serial_number=1,
            not_valid_before=ends - timedelta(days=400),
            not_valid_after=ends,
        ).sign(private, hashes.SHA256())
        kept = ec.generate_private_key(ec.SECP256R1()) if other_key else private
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        key.write_bytes(kept.private_bytes(serialization.Encoding.PEM, *form))
        self.serving(f'tls_cert = "{cert}"\ntls_key = "{key}"\n')

    def serving(self, text: str, before: str = "", port: int = 0) -> None:
        """Write the settings of a server over HTTP."""
        self.settings(f"{TARGET}{before}{HTTP}port = {port}\n{text}")

    def program(self, text: str) -> None:
        """Make a program the upstream."""
        path = self.file("upstream.py", text)
        self.upstream(command=sys.executable, args=[str(path)])

    def proxied(self, options: str) -> None:
        """Write the settings of a server that is reached by nginx."""
        port, behind = free_port(), free_port()
        text = f"""
            daemon off; master_process off; worker_processes 1; pid {self.folder}/nginx.pid; error_log stderr;
            events {{}}
            http {{ access_log off;
              client_body_temp_path {self.folder}/body; proxy_temp_path {self.folder}/proxy;
              fastcgi_temp_path {self.folder}/f; uwsgi_temp_path {self.folder}/u; scgi_temp_path {self.folder}/s;
              server {{ listen 127.0.0.1:{port};
                location / {{ proxy_pass http://127.0.0.1:{behind}; {options} }} }} }}"""
        config = self.file("nginx.conf", text)
        process = self.stack.enter_context(
            subprocess.Popen(  # noqa: S603 - our own program
                [str(NGINX), "-c", str(config), "-p", str(self.folder)], stderr=subprocess.DEVNULL
            )
        )
        self.stack.callback(process.terminate)
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=10).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None
        self.serving(f'public_url = "http://127.0.0.1:{port}"\n', port=behind)


def break_state(setup: Setup) -> None:
    setup.file("state", "no folder")


def expose_state(setup: Setup) -> None:
    assert main(["disable", "echo", "--quiet"]) == 0  # makes the store
    for file in (setup.folder / "state").rglob("*.sqlite3"):
        file.chmod(0o644)


def expose_settings(setup: Setup) -> None:
    setup.upstream(url=setup.answering(404), env={})
    setup.file(
        "callyard.toml",
        f'state_dir = "{setup.folder / "state"}"\n[upstreams.back]\ncommand = "true"\n'
        '[upstreams.back.env]\nAPI_TOKEN = "s3cret"\n',
        0o644,
    )


def expose_secret(setup: Setup) -> None:
    file = setup.file("token", "s3cret", 0o644)
    setup.upstream(command="true", env={"API_TOKEN": f"secretref:file:{file}"})


def damage_store(setup: Setup) -> None:
    file = setup.file("store.sqlite3", "no database" * 1000)
    setup.settings(f'store = "sqlite:{file}"\n{TARGET}')


def expire(setup: Setup) -> None:
    setup.certificate(days=-3)


def evict(setup: Setup) -> None:
    server = Program(setup.folder / "redis", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    setup.stack.callback(server.kill)
    server.ask("PING")
    setup.settings(f'store = "{server.url}"\n{TARGET}')


def many_tools(setup: Setup) -> None:
    code = """
from callyard import Profile, Surface, Yard, tool
def made(number):
    def echo(text: str) -> str:
        'Answer with the text, as it came, and without any change.'
        return text
    echo.__name__ = f"echo_{number}"
    return tool(echo, operation="query")
yard = Yard("shop", tools=[made(number) for number in range(300)], profile=Profile(name="all", surface=Surface.DIRECT))
"""
    setup.file("shop.py", code)


BROKEN: list[tuple[str, str, Callable[[Setup], object]]] = [
    ("a file that is no TOML", "config.invalid", lambda one: one.settings("= 7")),
    ("a value of the wrong kind", "config.invalid", lambda one: one.settings("[serve]\nport = true\n")),
    ("a target that is not there", "target.unusable", lambda one: one.settings('target = "none.py"\n')),
    ("a target that raises", "target.unusable", lambda one: one.file("shop.py", "1 / 0")),
    ("a file without a yard", "target.unusable", lambda one: one.file("shop.py", "yard = 7")),
    ("an unknown profile", "config.refused", lambda one: one.settings(f'{TARGET}profile = "nobody"\n')),
    (
        "metrics of workers",
        "config.refused",
        lambda one: one.serving("workers = 2\nstateless = true\n[monitor]\nmetrics = true\n"),
    ),
    ("an [auth] for nobody", "config.refused", lambda one: one.serving("[auth]\nscopes = ['a']\n")),
    ("no store of that name", "store.unusable", lambda one: one.settings(f'store = "paper"\n{TARGET}')),
    ("no pack of that name", "config.refused", lambda one: one.settings('packs = ["nothing"]\n')),
    ("no certificate", "certificate.unusable", lambda one: one.serving('tls_cert = "no.pem"\ntls_key = "no.pem"\n')),
    ("a key of another certificate", "certificate.unusable", lambda one: one.certificate(days=90, other_key=True)),
    ("an expired certificate", "certificate.expired", expire),
    ("a certificate near its end", "certificate.ends", lambda one: one.certificate(days=3)),
    ("a port in use", "port.in_use", lambda one: one.serving("", port=one.taken_port())),
    (
        "an address of another machine",
        "port.refused",
        lambda one: one.serving(
            'host = "203.0.113.7"\nallowed_hosts = ["a"]\n[auth]\napi_keys = [{name = "a", digest = "sha256:'
            + "0" * 64
            + '"}]\n'
        ),
    ),
    (
        "a variable that is not set",
        "secret.missing",
        lambda one: one.upstream(command="true", env={"A": "${NOT_SET_HERE}"}),
    ),
    (
        "a secret that is not there",
        "secret.missing",
        lambda one: one.upstream(command="true", env={"A": "secretref:file:/none"}),
    ),
    ("settings that others read", "secret.exposed", expose_settings),
    ("a secret that others read", "secret.exposed", expose_secret),
    (
        "an upstream that is down",
        "upstream.refused",
        lambda one: one.upstream(url=f"http://127.0.0.1:{free_port()}/mcp"),
    ),
    ("a host that does not exist", "upstream.dns", lambda one: one.upstream(url="http://nowhere.invalid/mcp")),
    ("a program that is not there", "upstream.not_started", lambda one: one.upstream(command="/no/such/program")),
    ("a program that ends", "upstream.exited", lambda one: one.program("raise SystemExit(3)")),
    (
        "a web page",
        "upstream.not_mcp",
        lambda one: one.upstream(url=one.answering(200, "<html>", {"content-type": "text/html"})),
    ),
    ("an upstream that wants a login", "upstream.auth", lambda one: one.upstream(url=one.answering(401))),
    ("an upstream that is overloaded", "upstream.overloaded", lambda one: one.upstream(url=one.answering(503))),
    ("an upstream that fails", "upstream.http_error", lambda one: one.upstream(url=one.answering(500))),
    (
        "an upstream that moved",
        "upstream.redirected",
        lambda one: one.upstream(url=one.answering(307, "", {"location": "http://127.0.0.1:1/"})),
    ),
    ("a store that is no database", "store.unusable", damage_store),
    (
        "a Redis that is down",
        "store.unusable",
        lambda one: one.settings(f'store = "redis://127.0.0.1:{free_port()}"\n{TARGET}'),
    ),
    ("a state directory that is a file", "file.state", break_state),
    ("a store that others read", "file.exposed", expose_state),
    (
        "an audit log in no folder",
        "file.log",
        lambda one: one.settings(f'{TARGET}[monitor]\naudit_log = "/no/such/log"\n'),
    ),
    (
        "nobody at the public URL",
        "proxy.unreachable",
        lambda one: one.serving(f'public_url = "http://127.0.0.1:{free_port()}"\n'),
    ),
    (
        "a name that clients cut",
        "name.long",
        lambda one: (
            one.settings(f"{TARGET}[limits]\nname_characters = 60\n"),
            one.file("shop.py", YARD.format(name="a" * 60)),
        ),
    ),
    ("more tools than the budget", "tokens.many", many_tools),
    (
        "a rule for no tool",
        "rule.unmatched",
        lambda one: one.settings(f'{TARGET}[[rules]]\ntools = ["gone"]\ndecision = "deny"\n'),
    ),
    (
        "programs without a sandbox",
        "runtime.unsafe",
        lambda one: one.serving(
            'host = "0.0.0.0"\n[runtime]\nenabled = true\nprofile = "dev"\n'
            '[auth]\napi_keys = [{name = "a", digest = "sha256:' + "0" * 64 + '"}]\n'
        ),
    ),
    (
        "a yard whose lifespan fails",
        "yard.refused",
        lambda one: one.file(
            "shop.py",
            "from callyard import Yard\ndef start(yard):\n    raise OSError('no disk')\nyard = Yard(lifespan=start)\n",
        ),
    ),
    (
        "another protocol for traces",
        "otel.off",
        lambda one: (
            one.patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
            one.patch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ),
    ),
    (
        "an API without its document",
        "source.unusable",
        lambda one: one.settings('[apis.pets]\ndocument = "none.yaml"\n'),
    ),
]


def leave(setup: Setup) -> None:
    """Change nothing."""


HEALTHY: list[Callable[[Setup], object]] = [
    leave,
    lambda one: one.serving(""),
    lambda one: one.certificate(days=90),
    lambda one: one.program(UPSTREAM),
]


def findings_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[dict[str, str]]:
    """Run the command in a folder, and return what it prints."""
    monkeypatch.chdir(folder)
    capsys.readouterr()
    status = main(["doctor", "--json", "--quiet"])
    answer = json.loads(capsys.readouterr().out)
    assert status == int(not answer["ok"])
    assert answer["ok"] is not any(one["status"] == "failed" for one in answer["findings"])
    return answer["findings"]


def test_each_broken_set_up_is_found_with_what_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong: list[str] = []
    for number, (name, expected, breaks) in enumerate(BROKEN):
        folder = tmp_path / str(number)
        folder.mkdir()
        with ExitStack() as stack, monkeypatch.context() as patch:
            patch.chdir(folder)
            breaks(Setup(folder, stack, patch))
            found = findings_of(folder, patch, capsys)
        ids = [one["id"] for one in found]
        if expected not in ids:
            wrong.append(f"{name}: {expected} is not in {found}")
        wrong += [f"{name}: {one}" for one in found if not (one["cause"] and one["command"])]
        wrong += [f"{name}: {one}" for one in found if one["status"] != FINDINGS[one["id"]].status]
    assert wrong == []


def test_nothing_is_found_on_healthy_set_ups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, prepare in enumerate(HEALTHY):
        folder = tmp_path / str(number)
        folder.mkdir()
        with ExitStack() as stack:
            prepare(Setup(folder, stack, monkeypatch))
            assert findings_of(folder, monkeypatch, capsys) == []
            assert main(["doctor", "--quiet"]) == 0
            assert capsys.readouterr().out == "Nothing is wrong.\n"


def test_findings_are_lines_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        Setup(tmp_path, stack, monkeypatch).settings('target = "none.py"\n')
        assert main(["doctor", "--quiet"]) == 1
    assert "target.unusable" in capsys.readouterr().out


@NEEDS_REDIS
def test_a_redis_whose_clock_differs_and_one_that_is_slow_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        server = Program(tmp_path / "redis")
        stack.callback(server.kill)
        server.ask("PING")
        Setup(tmp_path, stack, monkeypatch).settings(f'store = "{server.url}"\n{TARGET}')
        assert findings_of(tmp_path, monkeypatch, capsys) == []
        monkeypatch.setattr("callyard.launch.doctor._CLOCK_S", -1.0)
        monkeypatch.setattr("callyard.launch.doctor._SLOW_S", -1.0)
        found = findings_of(tmp_path, monkeypatch, capsys)
    assert [one["id"] for one in found] == ["store.clock", "store.slow"]


def test_a_store_on_a_network_file_system_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("callyard.launch.doctor.file_system_of", _network)
    with ExitStack() as stack:
        setup = Setup(tmp_path, stack, monkeypatch)
        file = setup.file("store.sqlite3", "")
        setup.settings(f'store = "sqlite:{file}"\n{TARGET}')
        assert [one["id"] for one in findings_of(tmp_path, monkeypatch, capsys)] == ["store.network"]


def _network(_: Path) -> str:
    return "nfs4"


def test_packages_that_are_missing_or_old_are_found() -> None:
    wanted = ["msgspec>=999", "no-such-package>=1", "pytest>=1", 'numpy>=999; extra == "semantic"']

    found = [(one.id, one.command) for one in check_packages(wanted)]

    assert found == [
        ("version.package", "pip install 'msgspec>=999'"),
        ("version.package", "pip install 'no-such-package>=1'"),
    ]


def test_a_cause_that_names_an_extra_says_what_to_install() -> None:
    found = Finding.of("store.unusable", "It needs redis: run \"pip install 'callyard[redis]'\".")

    assert (found.id, found.command) == ("version.extra", "pip install 'callyard[redis]'")


@NEEDS_REDIS
def test_a_redis_that_evicts_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        evict(Setup(tmp_path, stack, monkeypatch))
        (found,) = findings_of(tmp_path, monkeypatch, capsys)
    assert found["id"] == "store.evicts"
    assert "maxmemory-policy noeviction" in found["command"]


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("proxy_http_version 1.1;", []),
        ("proxy_http_version 1.0; proxy_buffering on; proxy_ignore_headers X-Accel-Buffering;", ["proxy.buffers"]),
        ("proxy_set_header Host other.example;", ["proxy.refuses"]),
        ("return 502;", ["proxy.refuses"]),
    ],
)
def test_a_proxy_that_holds_streams_back_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: str,
    expected: list[str],
) -> None:
    with ExitStack() as stack:
        Setup(tmp_path, stack, monkeypatch).proxied(options)
        found = findings_of(tmp_path, monkeypatch, capsys)
    assert [one["id"] for one in found] == expected


def test_a_server_that_runs_is_no_stranger_at_its_port_and_operators_diagnose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    with ExitStack() as stack:
        setup = Setup(tmp_path, stack, monkeypatch)
        operator = '[approvals]\noperators = ["local"]\n[[rules]]\ntools = ["gone"]\ndecision = "deny"\n'
        setup.serving("console = false\n", before='packs = ["system"]\n', port=port)
        setup.file("callyard.toml", (tmp_path / "callyard.toml").read_text() + operator)
        server = stack.enter_context(
            subprocess.Popen([sys.executable, "-m", "callyard", "serve", "--quiet"], cwd=tmp_path)
        )
        stack.callback(server.send_signal, signal.SIGTERM)
        while not _answers(port):
            assert server.poll() is None
        found = findings_of(tmp_path, monkeypatch, capsys)
        assert main(["call", f"http://127.0.0.1:{port}/mcp", "diagnose", "--json", "--quiet"]) in {0, 1}
        answer = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in found] == ["rule.unmatched"]
    assert answer["success"], answer
    assert [one["id"] for one in answer["data"]] == ["rule.unmatched"]


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except ConnectionError:
        return False
    finally:
        connection.close()
