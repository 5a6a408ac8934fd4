"""Requests to one HTTP agent: signed, without redirects, with bounded answers."""

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from overnight.models.http_agents import AbsenceAnswer, HealthAnswer, TaskAnswer
from overnight_server.agent_driver.answers import (
    TIMEOUT,
    Accepted,
    NoAnswer,
    NotSent,
    Rejected,
    Submission,
    TaskAbsent,
    TaskLookup,
    TaskPresent,
    UnreadableAnswer,
)
from overnight_server.agent_driver.signature import signed_headers
from overnight_server.outbound.addresses import parse_base
from overnight_server.outbound.machines import NOT_CONNECTED, build_request, find_machine

MAX_ANSWER_BYTES = 1024 * 1024
# A connection is used again for the next poll, unless the polls are rare.
KEPT_SECONDS = 20.0
ANSWER_SECONDS = 10.0
NOT_FOUND = 404
MAX_DETAIL = 500
# The agent need not have the task any more after one of these answers to a DELETE.
GONE = frozenset({404, 410})
M = TypeVar("M", bound=BaseModel)


class AgentUnreachable(Exception):
    """A request got no answer; `was_sent` says whether the agent may have got it."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_sent = was_sent


class AnswerTooLarge(AgentUnreachable):
    """An agent's answer is larger than MAX_ANSWER_BYTES."""

    def __init__(self) -> None:
        super().__init__(f"its answer is larger than {MAX_ANSWER_BYTES} bytes", was_sent=True)


@dataclass(frozen=True)
class RawAnswer:
    """The status and the body of an answer."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is a 2xx."""
        return self.status // 100 == 2  # noqa: PLR2004 - the classes of HTTP statuses

    @property
    def detail(self) -> str:
        """The beginning of the body as text."""
        return self.body[:MAX_DETAIL].decode(errors="replace").strip()


class AgentClient:
    """The requests of the driver to one agent, over its own connections.

    Without an answer `health` raises AgentUnreachable; the other requests return what is known.
    """

    def __init__(
        self,
        url: str,
        secret: str,
        *,
        private_allowed: bool,
        submit_seconds: float,
        tls: ssl.SSLContext,
    ) -> None:
        self._address = parse_base(url)
        self._secret = secret
        self._private_allowed = private_allowed
        self._submit_seconds = submit_seconds
        self._answer_seconds = min(ANSWER_SECONDS, submit_seconds)
        # The environment's proxies would connect to another address than the one that was checked.
        self._http = httpx2.AsyncClient(
            verify=tls,
            trust_env=False,
            follow_redirects=False,
            # One is kept: health and runs of an agent are asked for at different times.
            limits=httpx2.Limits(max_keepalive_connections=1, keepalive_expiry=KEPT_SECONDS),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def health(self) -> HealthAnswer:
        """Return what the agent says of itself; raise AgentUnreachable if it does not answer so."""
        answer = await self._request("GET", "/health")
        if not answer.is_success:
            raise AgentUnreachable(f"GET /health answered {answer.status}", was_sent=True)
        try:
            return _parse(HealthAnswer, answer.body)
        except ValueError as error:
            raise AgentUnreachable(f"GET /health: {_first_line(error)}", was_sent=True) from None

    async def submit(self, key: str, body: bytes, headers: Mapping[str, str]) -> Submission:
        """Send a task to the agent under its idempotency key."""
        headers = {"Idempotency-Key": key, "Content-Type": "application/json", **headers}
        try:
            answer = await self._request(
                "POST", "/task", body, headers, seconds=self._submit_seconds, keeps_body=False
            )
        except AgentUnreachable as error:
            return NoAnswer(error.reason) if error.was_sent else NotSent(error.reason)
        return Accepted() if answer.is_success else Rejected(answer.status, answer.detail)

    async def get_task_state(self, key: str) -> TaskLookup:
        """Ask the agent whether it has a task, and in which state."""
        try:
            answer = await self._request("GET", f"/task/{key}")
        except AnswerTooLarge as error:
            return UnreadableAnswer(error.reason, too_large=True)
        except AgentUnreachable as error:
            return NoAnswer(error.reason)
        try:
            if answer.status == NOT_FOUND:
                return TaskAbsent(_parse(AbsenceAnswer, answer.body).boot_id)
            if not answer.is_success:
                return NoAnswer(f"GET /task answered {answer.status}")
            return TaskPresent(_parse(TaskAnswer, answer.body))
        except ValueError as error:
            # A 404 that is not the agent's own, such as a proxy's, tells nothing about the task.
            if answer.status == NOT_FOUND:
                return NoAnswer("GET /task answered 404 without a boot_id")
            return UnreadableAnswer(_first_line(error))

    async def withdraw(self, key: str) -> bool:
        """Ask the agent to stop a task, and never to start it; return whether it agreed."""
        try:
            answer = await self._request("DELETE", f"/task/{key}", keeps_body=False)
        except AgentUnreachable:
            return False
        return answer.is_success or answer.status in GONE

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
        keeps_body: bool = True,
    ) -> RawAnswer:
        """Send one request and read its answer; with `keeps_body` a large one raises."""
        seconds = seconds or self._answer_seconds
        try:
            async with asyncio.timeout(seconds):
                request = await self._build(method, path, body, headers or {}, seconds)
                return await self._answer(request, keeps_body=keeps_body)
        except NOT_CONNECTED as error:
            raise AgentUnreachable(_short_reason(error, "no connection"), was_sent=False) from None
        except (TimeoutError, httpx2.TimeoutException):
            raise AgentUnreachable(TIMEOUT, was_sent=True) from None
        except httpx2.HTTPError as error:
            raise AgentUnreachable(_short_reason(error, "connection lost"), was_sent=True) from None

    async def _build(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> httpx2.Request:
        """Return a signed request to the machine that the host leads to now.

        Raises AddressRefused or gaierror if there is none that may be called.
        """
        machine = await find_machine(self._address, private_allowed=self._private_allowed)
        address = replace(self._address, path=self._address.path + path)
        signature = signed_headers(self._secret, int(time.time()), method, address.path, body)
        return build_request(
            self._http,
            method,
            address,
            machine,
            content=body,
            headers={**headers, **signature},
            seconds=seconds,
        )

    async def _answer(self, request: httpx2.Request, *, keeps_body: bool) -> RawAnswer:
        response = await self._http.send(request, stream=True)
        try:
            received = bytearray()
            async for chunk in response.aiter_raw():
                received += chunk
                if len(received) > MAX_ANSWER_BYTES:
                    if keeps_body:
                        raise AnswerTooLarge
                    break
            return RawAnswer(response.status_code, bytes(received))
        finally:
            await response.aclose()


def _parse(model: type[M], body: bytes) -> M:
    """Return an answer as a model; raise ValueError if it is not one."""
    try:
        return model.model_validate(json.loads(body))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _first_line(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"
    return f"invalid JSON: {error}"


def _short_reason(error: Exception, otherwise: str) -> str:
    """Return the beginning of an error's message; `otherwise` if it has none."""
    return str(error)[:MAX_DETAIL] or otherwise
