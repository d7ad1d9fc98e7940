"""The files of `deploy/`: the programs that read them accept them, and the image serves."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast
from urllib.request import urlopen

import pytest
import yaml

from callyard.cli.commands import COMMANDS

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
SECRETS = {"REDIS_PASSWORD": "pw-6f1", "CALLYARD_SECRET": "s" * 32}


def documents(name: str) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", list(yaml.safe_load_all((DEPLOY / name).read_text())))


def run(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # noqa: S603 - our own
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_of_the_folder_names_every_file() -> None:
    text = (DEPLOY / "README.md").read_text()
    assert [path.name for path in DEPLOY.iterdir() if path.is_file() and f"`{path.name}`" not in text] == ["README.md"]


def test_the_settings_are_accepted_and_the_tools_run(tmp_path: Path) -> None:
    for name in ("callyard.toml", "tools.py"):
        shutil.copy(DEPLOY / name, tmp_path)
    environment = {**os.environ, **SECRETS, "HOME": str(tmp_path)}
    settings = run(sys.executable, "-m", "callyard", "config", "--json", cwd=tmp_path, env=environment)
    assert "0.0.0.0" in settings  # noqa: S104 - what the image listens on
    assert SECRETS["REDIS_PASSWORD"] not in settings

    environment["CALLYARD_STORE"] = "memory"
    called = run(
        sys.executable,
        "-m",
        "callyard",
        "call",
        "tools.py",
        "greet",
        "name=Ada",
        "--json",
        cwd=tmp_path,
        env=environment,
    )
    assert json.loads(called)["data"] == "Hello, Ada."


def test_every_command_that_the_files_start_exists() -> None:
    (compose,) = documents("compose.yaml")
    services = [service for service in compose["services"].values() if service["image"] == "callyard"]
    started = {service["command"][0] for service in services if "command" in service}
    deployments = [one for one in documents("kubernetes.yaml") if one["kind"] == "Deployment"]
    containers = [container for one in deployments for container in one["spec"]["template"]["spec"]["containers"]]
    started |= {container["args"][0] for container in containers if "args" in container}
    for unit in DEPLOY.glob("*.service"):
        started |= set(re.findall(r"^ExecStart=\S+/callyard (\w+)", unit.read_text(), re.MULTILINE))
    started |= set(re.findall(r'^CMD \["(\w+)"', (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))
    assert started == {"serve", "worker"}
    assert started <= set(COMMANDS)


def test_every_service_gets_the_secrets_that_the_settings_name() -> None:
    named = set(re.findall(r"\$\{(\w+)\}", (DEPLOY / "callyard.toml").read_text())) | {"CALLYARD_SECRET"}
    (compose,) = documents("compose.yaml")
    lacking = [
        name
        for name, service in compose["services"].items()
        if service["image"] == "callyard" and not named <= set(service["environment"])
    ]
    assert not lacking


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_accepts_its_file(tmp_path: Path) -> None:
    text = (DEPLOY / "nginx.conf").read_text().replace("replica-1", "127.0.0.1").replace("replica-2", "127.0.0.2")
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/nginx.pid;\nerror_log {tmp_path}/error.log;\n{text}")
    run("nginx", "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "error.log"))


@pytest.mark.skipif(shutil.which("caddy") is None, reason="Caddy is not installed")
def test_caddy_accepts_its_file(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    run("caddy", "validate", "--adapter", "caddyfile", "--config", str(DEPLOY / "Caddyfile"), env=environment)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="Redis is not installed")
def test_redis_is_a_database_with_its_file(tmp_path: Path) -> None:
    text = (DEPLOY / "redis.conf").read_text().replace("dir /data", f"dir {tmp_path}")
    socket = tmp_path / "redis.sock"
    program = subprocess.Popen(  # noqa: S603 - our own
        [str(shutil.which("redis-server")), "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(f"{text}\nport 0\nunixsocket {socket}\nrequirepass example\n")
        program.stdin.close()
        while "ready to accept connections" not in program.stdout.readline():
            assert program.poll() is None
        values = run(
            *("redis-cli", "-s", str(socket), "config", "get", "appendonly", "maxmemory-policy"),
            env={**os.environ, "REDISCLI_AUTH": "example"},
        )
    finally:
        program.terminate()
        program.wait()
        if program.stdout is not None:
            program.stdout.close()
    assert dict(zip(values.split()[::2], values.split()[1::2], strict=True)) == {
        "appendonly": "yes",
        "maxmemory-policy": "noeviction",
    }


@pytest.mark.skipif("CI_IMAGE" not in os.environ, reason="the image is built by 'make soak' alone")
def test_the_image_is_built_and_serves(tmp_path: Path) -> None:
    """On a root file system of mmdebstrap, because a base image may not be had; CI_IMAGE is the port to serve at."""
    port = int(os.environ["CI_IMAGE"])
    base = tmp_path / "root.tar"
    packages = "--include=python3,python3-venv,ca-certificates"
    run("mmdebstrap", "--variant=minbase", packages, "bookworm", str(base))
    run("podman", "import", "--quiet", str(base), "localhost/callyard-base")
    build = (
        "podman",
        "build",
        "--isolation",
        "chroot",
        "--network",
        "host",
        "--build-arg",
        "BASE=localhost/callyard-base",
    )
    certificates = (
        "--volume",
        "/etc/ssl/certs:/etc/ssl/certs:ro",
        "--env",
        "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
    )
    run(*build, *certificates, "--file", "deploy/Dockerfile", "--tag", "localhost/callyard-test", ".", cwd=ROOT)

    limits = ("--runtime", "runc", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096", "--network", "host")
    settings = ("--env", "CALLYARD_STORE=memory", "--env", f"CALLYARD_PORT={port}", "--env", "REDIS_PASSWORD=example")
    mounts = [f"--volume={DEPLOY / name}:/etc/callyard/{name}:ro" for name in ("callyard.toml", "tools.py")]
    started = run(
        *("podman", "run", "--detach", "--rm", "--read-only", "--tmpfs", "/tmp", "--no-healthcheck", *limits),  # noqa: S108 - a folder in the container
        *(*settings, *mounts, "localhost/callyard-test"),
    ).strip()
    try:
        follow = (str(shutil.which("podman")), "logs", "--follow", started)
        with subprocess.Popen(follow, stderr=subprocess.PIPE, text=True) as logs:  # noqa: S603 - our own
            assert logs.stderr is not None
            while "serving yard=" not in (line := logs.stderr.readline()):
                assert line, "the container ended"
            with urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
                assert answer.status == 200
            run("podman", "stop", "--time", "40", started)
    finally:
        run("podman", "rm", "--force", "--ignore", started)
