"""Finding what a command talks to: the settings, the server and its key, the local home."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING

from overnight_server.cli.terminal.failures import Code, Failure

if TYPE_CHECKING:
    from overnight import Client
    from overnight.client.discovery import Server
    from overnight_server.local.home import Home
    from overnight_server.settings import Settings

ADVICE = "Start one here with `overnight up`, or set OVERNIGHT_URL and OVERNIGHT_API_KEY."
KEY_ADVICE = "Set OVERNIGHT_API_KEY, or name a file that holds the key with --api-key-file."
# How a server answers that knows none of our paths, or sends everybody elsewhere.
NOBODYS = frozenset(
    {
        HTTPStatus.MOVED_PERMANENTLY,
        HTTPStatus.FOUND,
        HTTPStatus.TEMPORARY_REDIRECT,
        HTTPStatus.PERMANENT_REDIRECT,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.NOT_IMPLEMENTED,
    }
)
_CHOSEN: ContextVar[str | None] = ContextVar("profile", default=None)


def settings() -> "Settings":
    """Return the settings; a wrong one is told like a wrong option."""
    from overnight_server.settings import SettingsError, load

    try:
        return load()
    except SettingsError as error:
        problems = "; ".join(problem.line for problem in error.problems)
        raise Failure(problems, code=Code.USAGE) from error


def home(known: "Settings") -> "Home":
    """Return the home of the local deployment, looked for from here upwards."""
    from overnight_server.local.home import Home

    return Home.find(known.home)


def find_server(url: str | None, key_file: Path | None) -> "Server":
    """Settle where to call and with which key, as a program's client would.

    Options come first, then the settings, then the default profile, then the local home.
    """
    from overnight.client import discovery
    from overnight.client.discovery import Environment, NoKey, NoServer
    from overnight.errors import NotConfigured

    said = settings()
    known = Environment(said.url, said.api_key, said.profile, said.home)
    try:
        return discovery.find_server(known, url=url, key_file=key_file, profile=_CHOSEN.get())
    except NoServer as error:
        raise Failure("no server is known here", hint=ADVICE) from error
    except NoKey as error:
        message = str(error).partition(": pass")[0]
        raise Failure(message, hint=KEY_ADVICE, code=Code.NOT_AUTHENTICATED) from error
    except NotConfigured as error:
        raise Failure(str(error), code=Code.USAGE) from error


@contextmanager
def chosen_profile(name: str | None) -> Iterator[None]:
    """Speak to the server of this profile while the context is open; None chooses nothing."""
    before = _CHOSEN.set(name)
    try:
        yield
    finally:
        _CHOSEN.reset(before)


@contextmanager
def client(url: str | None, key_file: Path | None) -> Iterator["Client"]:
    """Open the client for one command; what the service refuses ends as a failure."""
    from pydantic import ValidationError

    from overnight import Client, OvernightError

    server = find_server(url, key_file)
    # A person waits for the answer: "queue is full" is worth more now than after four tries.
    with Client(server.url, server.api_key, retries=0) as opened:
        try:
            yield opened
        except OvernightError as error:
            failure = _nobody_at(server.url, error) or told(error)
            failure.word = getattr(error, "code", "") or failure.word
            # What was added on the way, such as the ids of what goes on, comes before the advice.
            failure.hint = "\n".join([*getattr(error, "__notes__", ()), failure.hint]).strip()
            raise failure from error
        except (ValidationError, JSONDecodeError, UnicodeDecodeError) as error:
            message = f"{server.url} did not answer as an Overnight server does"
            raise Failure(message, hint=_address_advice(server.url)) from error


def _nobody_at(url: str, error: Exception) -> Failure | None:
    """Return how to tell that whatever answers here has none of our paths; None if it has."""
    from overnight import errors

    if isinstance(error, errors.NotUnderstood):
        return Failure(str(error), hint=_address_advice(url))
    if not isinstance(error, errors.Refused):
        return None
    # Ours says so in its own words, as when the address brings a path along.
    is_ours = error.code == "NOT_FOUND" and error.status == HTTPStatus.NOT_FOUND
    if not is_ours and not (error.code.startswith("HTTP_") and error.status in NOBODYS):
        return None
    message = f"no Overnight API answers at {url}: it answered {error.status}"
    return Failure(message, hint=_address_advice(url))


def _address_advice(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    example = (
        f"{parts.scheme}://{parts.netloc}" if parts.path.strip("/") else "http://127.0.0.1:8000"
    )
    return f"Give the server's address without a path, such as {example}."


def told(error: Exception) -> Failure:
    """Word what the client raised for a person, with the exit code a script can read."""
    from overnight import errors

    match error:
        case errors.QueueFull() | errors.TooManyPending() | errors.MonthlyLimitReached():
            return Failure(error.message, hint=_limit_advice(error), code=Code.LIMITED)
        case errors.Unauthenticated():
            return Failure(error.message, hint=KEY_ADVICE, code=Code.NOT_AUTHENTICATED)
        case errors.InvalidRequest():
            legal = [
                f"{wrong.field}: {wrong.legal}"
                for wrong in error.fields
                # A refusal of the service may say it already.
                if wrong.legal and wrong.legal not in error.message
            ]
            hint = f"Legal is {'; '.join(legal)}." if legal else ""
            return Failure(error.message, hint=hint, code=Code.USAGE)
        case errors.WaitTimedOut():
            hint = f"It goes on; `overnight wait {error.task.id}` takes up the wait again."
            return Failure(str(error), hint=hint, code=Code.WAITED_IN_VAIN)
        case errors.DagWaitTimedOut():
            hint = f"It goes on; `overnight dag show {error.dag.id} --watch` takes up the wait."
            return Failure(str(error), hint=hint, code=Code.WAITED_IN_VAIN)
        case errors.BulkWaitTimedOut():
            hint = f"It goes on; `overnight bulk show {error.bulk.id} --watch` takes up the wait."
            return Failure(str(error), hint=hint, code=Code.WAITED_IN_VAIN)
        case errors.TaskFailed() | errors.DagFailed():
            return Failure(str(error), code=Code.ENDED_BADLY)
        case errors.Unreachable():
            return Failure(str(error), hint=ADVICE)
        case _:
            return Failure(str(error))


def _limit_advice(error: Exception) -> str:
    from overnight import errors

    if isinstance(error, errors.QueueFull):
        return "Try again later."
    return "`overnight limits` shows what your plan allows."
