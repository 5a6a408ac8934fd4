"""Maps how a command ended to the outcome of its run; docs/guides/commands.md shows the table."""

import signal
from typing import Final

from overnight.handlers.control_exceptions import Fail, Retry, Stopped
from overnight_worker.sandbox import SandboxEnd

# By exit code: the error class, and what the code means (sysexits.h, and the shell's 126 and 127).
FINAL: Final = {
    64: ("bad_command", "the command was used wrongly"),
    65: ("bad_command", "its input is wrong"),
    66: ("bad_command", "its input is missing"),
    77: ("auth_failure", "it may not do that, or its login is wrong"),
    126: ("bad_command", "the program cannot be executed"),
    127: ("bad_command", "the program was not found"),
}
RETRIED: Final = {75: ("error", "it failed for now and asks to be run again")}
BY_POLICY: Final = {69: ("rate_limit", "a service is not available or limits its use")}


class CommandFailed(Exception):
    """A command ended badly; the task's retry policy decides what follows."""

    def __init__(self, message: str, error_class: str) -> None:
        super().__init__(message)
        self.error_class = error_class


def check_end(
    end: SandboxEnd, *, stop_reason: str | None, last_line: str, has_result: bool
) -> None:
    """Return if a command succeeded; else raise what its end means for the run.

    `last_line` is the last line that it wrote to stderr, for the message. A command that was asked
    to stop has succeeded only if it has reported a result.
    """
    match end.cause:
        case "exit":
            _check_code(end.exit_code or 0, last_line)
        case "stopped":
            if end.exit_code != 0 or not has_result:
                raise Stopped(stop_reason or "lost")
        case "signal":
            raise CommandFailed(_with_line(_signal_text(end.signal), last_line), "crash")
        case "oom":
            raise CommandFailed(end.detail, "out_of_memory")
        case "workspace_full":
            raise CommandFailed(end.detail, "error")
        case "failed":
            raise Retry(f"the sandbox failed: {end.detail}", error_class="no_sandbox")


def _check_code(code: int, last_line: str) -> None:
    if code == 0:
        return
    if code in FINAL:
        error_class, meaning = FINAL[code]
        raise Fail(_with_line(_code_text(code, meaning), last_line), error_class=error_class)
    if code in RETRIED:
        error_class, meaning = RETRIED[code]
        raise Retry(_with_line(_code_text(code, meaning), last_line), error_class=error_class)
    error_class, meaning = BY_POLICY.get(code, ("error", ""))
    raise CommandFailed(_with_line(_code_text(code, meaning), last_line), error_class)


def _code_text(code: int, meaning: str) -> str:
    text = f"the command ended with exit code {code}"
    return f"{text} ({meaning})" if meaning else text


def _signal_text(number: int | None) -> str:
    if number == signal.SIGXCPU:
        return "the command used more processor time than twice its time limit"
    try:
        return f"the command was ended by {signal.Signals(number or 0).name}"
    except ValueError:
        return f"the command was ended by signal {number}"


def _with_line(text: str, last_line: str) -> str:
    return f"{text}: {last_line}" if last_line else text
