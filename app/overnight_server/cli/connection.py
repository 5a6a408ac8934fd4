"""Find what a command connects to: the settings, the API server and its key, the local home."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING

from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Client, Task
    from overnight.client.discovery import Environment, ServerAddress
    from overnight_server.local.home import Home
    from overnight_server.settings import Settings

ADVICE = (
    "Start a local server with `overnight up`, or set OVERNIGHT_URL and OVERNIGHT_API_KEY to use "
    "another one."
)
KEY_ADVICE = "Set OVERNIGHT_API_KEY, or pass --api-key-file with a file that holds the key."
ADMIN_ADVICE = (
    "An admin can give you the rights with `overnight user admin NAME`. Where the database can be"
    " reached, add --database to that command."
)
# The statuses of a server that is not Overnight: it redirects, or has none of our paths.
FOREIGN_STATUSES = frozenset(
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
# What to do if the object that a command names does not exist.
LIST_COMMANDS = {
    "TASK_NOT_FOUND": "`overnight list` shows your tasks.",
    "WORKER_NOT_FOUND": "`overnight workers` shows all workers.",
    "USER_NOT_FOUND": "`overnight user list` shows all users.",
    "KEY_NOT_FOUND": "`overnight key list` shows all keys.",
}
_PROFILE: ContextVar[str | None] = ContextVar("profile", default=None)


def settings() -> "Settings":
    """Return the settings of the server; raise CommandFailure, as for a wrong option, if wrong."""
    from overnight_server.settings import SettingsError, load

    try:
        return load()
    except SettingsError as error:
        problems = "; ".join(problem.line for problem in error.problems)
        raise CommandFailure(problems, code=Code.USAGE) from error


def home(configured: "Settings") -> "Home":
    """Return the home of the local stack, searched for from the working directory upwards."""
    from overnight_server.local.home import Home

    return Home.find(configured.home)


def find_server(url: str | None, key_file: Path | None) -> "ServerAddress":
    """Return the address and the key to use, found as `overnight.Client()` finds them.

    Options come first, then the environment, then the default profile, then the local stack.
    """
    from overnight.client import discovery
    from overnight.client.discovery import NoKey, NoServer
    from overnight.errors import NotConfigured

    try:
        return discovery.find_server(
            _environment(), url=url, key_file=key_file, profile=_PROFILE.get()
        )
    except NoServer as error:
        raise CommandFailure("No server is configured or running here.", hint=ADVICE) from error
    except NoKey as error:
        message = str(error).partition(": pass")[0]
        raise CommandFailure(message, hint=KEY_ADVICE, code=Code.NOT_AUTHENTICATED) from error
    except NotConfigured as error:
        raise CommandFailure(str(error), code=Code.USAGE) from error


def _environment() -> "Environment":
    """Return what environment and `.env` configure for a client.

    `.env` is read, and misspelt settings are reported, only where the server is installed: the
    package that reads settings comes with it.
    """
    from overnight.client.discovery import Environment

    try:
        configured = settings()
    except ModuleNotFoundError:
        return Environment.read()
    return Environment(configured.url, configured.api_key, configured.profile, configured.home)


@contextmanager
def selected_profile(name: str | None) -> Iterator[None]:
    """Use the server of this profile while the context is open; None selects no profile."""
    token = _PROFILE.set(name)
    try:
        yield
    finally:
        _PROFILE.reset(token)


@contextmanager
def client(
    url: str | None = None, key_file: Path | None = None, *, as_admin: bool = False
) -> Iterator["Client"]:
    """Open the client for one command; errors of the service become failures of the command.

    With `as_admin`, a 404 for the whole path is reported as a key without admin rights.
    """
    from pydantic import ValidationError

    from overnight import Client, OvernightError

    server = find_server(url, key_file)
    # No retries, because a person waits: a refusal is worth more now than after four attempts.
    with Client(server.url, server.api_key, retries=0) as opened:
        try:
            yield opened
        except OvernightError as error:
            failure = (
                (_not_admin(error) if as_admin else None)
                or _foreign_server(server.url, error)
                or _key_refused(server, error)
                or failure_of(error)
            )
            failure.error_code = getattr(error, "code", "") or failure.error_code
            # Notes, such as the ids of tasks that are still running, come before the hint.
            failure.hint = "\n".join([*getattr(error, "__notes__", ()), failure.hint]).strip()
            raise failure from error
        except (ValidationError, JSONDecodeError, UnicodeDecodeError) as error:
            message = f"The response of {server.url} is not that of an Overnight server."
            raise CommandFailure(message, hint=_address_advice(server.url)) from error


def _not_admin(error: Exception) -> CommandFailure | None:
    """Return the failure to report if the API hides its admin routes from this key, else None."""
    from overnight import errors

    if not isinstance(error, errors.Refused) or error.code != "NOT_FOUND":
        return None
    return CommandFailure("This command needs the API key of an admin.", hint=ADMIN_ADVICE)


def _key_refused(server: "ServerAddress", error: Exception) -> CommandFailure | None:
    """Return the failure to report if the server did not accept the API key, else None."""
    from overnight import errors

    if not isinstance(error, errors.Unauthenticated):
        return None
    hint = (
        f"The key came from {server.key_source}. It is wrong, expired or revoked, or belongs to"
        f" another server than {server.url}.\n"
        "Replace it there, or pass --api-key-file with a file that holds a valid key."
    )
    message = "The API key was not accepted."
    return CommandFailure(message, hint=hint, code=Code.NOT_AUTHENTICATED)


def _foreign_server(url: str, error: Exception) -> CommandFailure | None:
    """Return the failure to report if the address is not that of an Overnight API, else None."""
    from overnight import errors

    if isinstance(error, errors.NotUnderstood):
        return CommandFailure(str(error), hint=_address_advice(url))
    if not isinstance(error, errors.Refused):
        return None
    # An Overnight server reports NOT_FOUND itself when the address contains a path.
    is_wrong_path = error.code == "NOT_FOUND" and error.status == HTTPStatus.NOT_FOUND
    is_foreign = error.code.startswith("HTTP_") and error.status in FOREIGN_STATUSES
    if not is_wrong_path and not is_foreign:
        return None
    message = f"There is no Overnight API at {url}: it responded with status {error.status}."
    return CommandFailure(message, hint=_address_advice(url))


def _address_advice(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    example = (
        f"{parts.scheme}://{parts.netloc}" if parts.path.strip("/") else "http://127.0.0.1:8000"
    )
    return f"Give the address of the server without a path, such as {example}."


def failure_of(error: Exception) -> CommandFailure:
    """Return the failure that reports an error of the client, with its exit code."""
    from overnight import errors

    match error:
        case errors.QueueFull() | errors.TooManyPending() | errors.MonthlyLimitReached():
            return CommandFailure(error.message, hint=_limit_advice(error), code=Code.LIMITED)
        case errors.InvalidRequest():
            legal = [
                f"{wrong.field}: {wrong.legal}"
                for wrong in error.fields
                # The message of some refusals contains the legal values already.
                if wrong.legal and wrong.legal not in error.message
            ]
            hint = f"Allowed: {'; '.join(legal)}." if legal else ""
            # An option that is not given is null already.
            message = error.message.replace(" or null", "")
            return CommandFailure(message, hint=hint, code=Code.USAGE)
        case errors.NotRetryable() if error.details.get("state") == "completed":
            hint = "`overnight dag fork ID` runs a completed task again, in a new graph."
            return CommandFailure(error.message, hint=hint)
        case errors.Refused() if error.code in LIST_COMMANDS:
            return CommandFailure(error.message, hint=LIST_COMMANDS[error.code])
        case errors.WaitTimedOut():
            late = _wait_timed_out(error, f"overnight wait {error.task.id}")
            late.hint += f"\n`overnight explain {error.task.id}` shows why a task does not start."
            return late
        case errors.DagWaitTimedOut():
            return _wait_timed_out(error, f"overnight dag show {error.dag.id} --watch")
        case errors.BulkWaitTimedOut():
            return _wait_timed_out(error, f"overnight bulk show {error.bulk.id} --watch")
        case errors.TaskFailed():
            hint = _failed_task_advice(error.task)
            return CommandFailure(str(error), hint=hint, code=Code.NOT_COMPLETED)
        case errors.DagFailed():
            return CommandFailure(str(error), code=Code.NOT_COMPLETED)
        case errors.Unreachable():
            return CommandFailure(str(error), hint=ADVICE)
        case _:
            return CommandFailure(str(error))


def _wait_timed_out(error: Exception, command: str) -> CommandFailure:
    hint = f"It has not ended; continue waiting with `{command}`."
    return CommandFailure(str(error), hint=hint, code=Code.WAIT_TIMED_OUT)


def _failed_task_advice(task: "Task") -> str:
    if task.state != "dead_lettered":
        return ""
    if task.failure_reason == "no_handler":
        return (
            f"No worker had a handler for type {task.type!r}. Set OVERNIGHT_HANDLERS and restart"
            f" the workers; then run the task again with `overnight retry {task.id}`."
        )
    return (
        f"`overnight get {task.id}` shows every run with its error; `overnight retry {task.id}`"
        " runs the task again."
    )


def _limit_advice(error: Exception) -> str:
    from overnight import errors

    if isinstance(error, errors.QueueFull):
        return "Try again later."
    return "`overnight limits` shows the limits of your plan."
