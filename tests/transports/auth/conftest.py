"""What the tests of authentication share: a real issuer on the loopback address, with keys of its own."""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from callyard.testing import FakeClock
from callyard.transports.auth import Tokens

NOW = 1_000_000.0


def private_key(kind: str, kid: str, bits: int = 2048) -> Any:
    """Return a private key, the same for the same names: making them is slow."""
    return _made(kind, kid, bits)


@cache
def _made(kind: str, _kid: str, bits: int) -> Any:
    if kind == "RSA":
        return rsa.generate_private_key(public_exponent=65537, key_size=bits)
    return ed25519.Ed25519PrivateKey.generate() if kind == "OKP" else ec.generate_private_key(ec.SECP256R1())


def public_jwk(kind: str, kid: str, bits: int = 2048) -> dict[str, Any]:
    """Return the public part of a key, as an issuer publishes it."""
    algorithm: Any = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}[kind]
    return {**algorithm.to_jwk(private_key(kind, kid, bits).public_key(), as_dict=True), "kid": kid}


class FakeIssuer:
    """An issuer that signs tokens and serves its keys over HTTP."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.redirect = ""
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.jwks = f"{self.url}/keys"
        self.publish(public_jwk("RSA", "one"))

    def publish(self, *keys: Any) -> None:
        """Serve these keys from now on."""
        self.answer("/keys", {"keys": list(keys)})

    def answer(self, path: str, document: object, status: int = 200) -> None:
        """Serve a document, or bytes as they are."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.answers[path] = (status, body)

    def sign(
        self, *, kind: str = "RSA", kid: str = "one", header: dict[str, Any] | None = None, alg: str = "", **claims: Any
    ) -> str:
        """Return a token; a claim that is none is left out."""
        algorithm = alg or {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}[kind]
        said = {"iss": self.url, "aud": "yard", "sub": "ada", "exp": NOW + 3600, **claims}
        present = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(
            present, private_key(kind, kid), algorithm, headers={"kid": kid} if header is None else header
        )

    def bearer(self, **options: Any) -> str:
        """Return a token as the header Authorization has it."""
        return f"Bearer {self.sign(**options)}"

    def stop(self) -> None:
        """Stop serving; a second time does nothing."""
        self.gate.set()
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                issuer.arrived.set()
                issuer.gate.wait()
                with suppress(ConnectionError):  # who asked may be gone
                    self._answer()

            def _answer(self) -> None:
                status, body = issuer.answers.get(self.path, (404, b"{}"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if issuer.redirect:
                    self.send_header("Location", issuer.redirect)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is inherited
                """Say nothing."""

        return Handler


@pytest.fixture
def issuer() -> Generator[FakeIssuer]:
    """Return an issuer that serves one RSA key, named 'one', at '/keys'."""
    made = FakeIssuer()
    yield made
    made.stop()


@pytest.fixture(name="public_jwk")
def make_public_jwk() -> Callable[..., dict[str, Any]]:
    """Return how public keys are made."""
    return public_jwk


@pytest.fixture(name="private_key")
def make_private_key() -> Callable[..., Any]:
    """Return how private keys are made."""
    return private_key


@pytest.fixture
def clock() -> FakeClock:
    """Return the clock that tokens are checked by."""
    return FakeClock(NOW)


@pytest.fixture
def make_tokens(issuer: FakeIssuer, clock: FakeClock) -> Callable[..., Tokens]:
    """Make a guard that trusts the issuer."""

    def make(**options: Any) -> Tokens:
        chosen: dict[str, Any] = {"jwks": issuer.jwks, "clock": clock, "wall": clock, **options}
        return Tokens(issuer.url, "yard", **chosen)

    return make
