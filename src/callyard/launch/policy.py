"""Makes the policy options of a yard from settings: rules, operators, webhook and decision point."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callyard.config import Config, ConfigError
from callyard.config.convert import Location, References
from callyard.launch.errors import LaunchError, as_launch_error
from callyard.launch.notices import Notices
from callyard.policy.rules import Rules

if TYPE_CHECKING:
    from callyard.policy.webhook import Post  # few yards need it

__all__ = ["policy_options", "post_json"]

_ANSWER_BYTES: Final = 64 * 1024
_CONNECT_S: Final = 10.0


def policy_options(config: Config, notices: Notices) -> dict[str, Any]:
    """Return the options for `Yard.configure` that concern rules and approvals.

    Raises:
        LaunchError: A rule, a URL or a secret is wrong.
    """
    settings, options = config.settings, dict[str, Any]()
    if config.rules:
        with as_launch_error(ValueError):
            Rules(config.rules)  # compiles the patterns
        options["rules"] = config.rules
    operators = (*settings.approvals.operators, *(f"key:{key.name}" for key in settings.auth.api_keys if key.operator))
    if operators:
        options["operators"] = operators
    if settings.approvals.webhook is not None:
        options["webhook"] = _webhook(config, notices)
    if settings.policy.url is not None:
        from callyard.policy.webhook import HttpDecisionPoint  # noqa: PLC0415 - few yards need it

        _check_url("policy.url", settings.policy.url)
        options["decision_point"] = HttpDecisionPoint(settings.policy.url, post_json, seconds=settings.policy.seconds)
    return options


def _webhook(config: Config, notices: Notices) -> Any:
    from callyard.policy.webhook import HttpWebhook  # noqa: PLC0415 - few yards need it

    approvals = config.settings.approvals
    url = _check_url("approvals.webhook", approvals.webhook or "")
    if not approvals.webhook_secret:
        raise LaunchError("'approvals.webhook' needs 'approvals.webhook_secret', which signs what is sent.")
    folder = Path() if config.path is None else config.path.parent
    references = References(variables=os.environ, folder=folder, warn=notices.inform)
    with as_launch_error(ConfigError):
        secret = references.resolve(approvals.webhook_secret, Location("approvals.webhook_secret"))
    return HttpWebhook(url, secret, post_json)


def _check_url(name: str, url: str) -> str:
    from callyard.transports.auth.authenticator import check_url  # noqa: PLC0415 - few yards need it

    with as_launch_error(ValueError):
        check_url(name, url)
    return url


class _Answer:
    """Collects the response to one request."""

    connection: Any = None
    is_event_stream = False

    def __init__(self) -> None:
        self.done: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body = b""

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:  # noqa: ARG002 - the interface of the client
        self._status = status

    def on_body(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > _ANSWER_BYTES:
            if self.connection is not None:
                self.connection.abort()
            self._settle(OSError("The answer is too long."))

    def on_complete(self) -> None:
        self._settle(None)

    def on_error(self, error: Exception) -> None:
        self._settle(OSError(str(error)))

    def _settle(self, error: OSError | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result((self._status, self._body))
        else:
            self.done.set_exception(error)


async def post_json(url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Post JSON on a connection of its own, and return status and body of the response; redirects are not followed.

    Raises:
        OSError: There is no answer.
    """
    # Loaded with the first request, because a server starts sooner without.
    from callyard.providers.upstream.http.client import Pool, RequestHead, parse_address  # noqa: PLC0415 - see above

    address = parse_address(url, url)
    pool = Pool("the service", address, limit=1, connect_seconds=_CONNECT_S)
    answer = _Answer()
    try:
        pool.send(answer, RequestHead(address, {}).post(body, headers, credentials={}))
        return await answer.done
    finally:
        await pool.close()


if TYPE_CHECKING:
    _: Post = post_json
