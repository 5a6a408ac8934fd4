"""Messages to webhooks and Slack: signed, to machines that users may name, without redirects."""

import asyncio
import json
import ssl
import time
from datetime import UTC, datetime

import httpx2

from overnight.errors import InvalidRequest
from overnight_server.domain.delivery_outcomes import (
    Delivered,
    NotDelivered,
    Outcome,
    retry_after_seconds,
)
from overnight_server.domain.webhook_signatures import signed_headers
from overnight_server.notifier.contents import describe, webhook_body
from overnight_server.notifier.delivery_rows import Message
from overnight_server.notifier.resolver import Resolver
from overnight_server.outbound.addresses import parse_address
from overnight_server.outbound.machines import NOT_CONNECTED, build_request

USER_AGENT = "Overnight"
GONE = 410
# A receiver that answers so is busy, and says for how long.
BUSY = frozenset({429, 503})
MAX_SLACK_TEXT = 30_000


class HttpSender:
    """Sends messages to webhooks and to Slack, each over a connection of its own."""

    def __init__(self, *, seconds: float, base_url: str | None = None) -> None:
        self._seconds = seconds
        self._base_url = base_url
        self._resolver = Resolver()
        # The environment's proxies would connect to another address than the one that was checked.
        # No connection is kept, because two hosts may be at one address.
        self._http = httpx2.AsyncClient(
            verify=ssl.create_default_context(),
            trust_env=False,
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, message: Message) -> Outcome:
        """Send a message, and return what the receiver's answer means."""
        if message.channel.kind == "slack":
            body, headers = self._slack_body(message), {}
        else:
            body = webhook_body(message)
            secrets = message.channel.secrets
            headers = signed_headers(secrets, message.id, int(time.time()), body)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._post(message, body, headers)
        except (TimeoutError, httpx2.TimeoutException):
            return NotDelivered(f"no answer within {self._seconds:g} seconds")
        except NOT_CONNECTED as error:
            return NotDelivered(f"no connection: {str(error)[:200] or type(error).__name__}")
        except httpx2.HTTPError as error:
            return NotDelivered(f"connection lost: {str(error)[:200] or type(error).__name__}")

    def _slack_body(self, message: Message) -> bytes:
        content = describe(message, self._base_url)
        text = f"{content.subject}\n{content.text}"
        # Slack reads these three characters as its own markup.
        for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            text = text.replace(char, entity)
        return json.dumps({"text": text[:MAX_SLACK_TEXT]}).encode()

    async def _post(self, message: Message, body: bytes, headers: dict[str, str]) -> Outcome:
        channel = message.channel
        try:
            address = parse_address(channel.address, field="address")
        except InvalidRequest as error:
            return NotDelivered(str(error)[:200], is_final=True)
        machine = await self._resolver.find(
            channel.user_id, address, private_allowed=channel.private_allowed
        )
        request = build_request(
            self._http,
            "POST",
            address,
            machine,
            content=body,
            headers={
                "Content-Type": "application/json",
                "User-Agent": USER_AGENT,
                **headers,
            },
            seconds=self._seconds,
        )
        response = await self._http.send(request, stream=True)
        try:
            return judge(response.status_code, response.headers.get("retry-after"))
        finally:
            await response.aclose()


def judge(status: int, retry_after: str | None) -> Outcome:
    """Return what an answer means.

    >>> judge(204, None)
    Delivered(status=204)
    >>> judge(302, None).error
    'the receiver answered 302: a redirect, which is not followed'
    """
    match status // 100:
        case 2:
            return Delivered(status)
        case 3:
            error = f"the receiver answered {status}: a redirect, which is not followed"
            return NotDelivered(error, status)
        case _:
            error = f"the receiver answered {status}"
    if status == GONE:
        return NotDelivered(f"{error}: it wants no messages any more", status, is_gone=True)
    seconds = retry_after_seconds(retry_after, datetime.now(UTC)) if status in BUSY else 0.0
    return NotDelivered(error, status, retry_after=seconds)
