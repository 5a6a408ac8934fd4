"""Runs the command line of a coding agent, and reports what it says about itself as events.

    report_events.py claude -- claude --print --output-format stream-json --verbose
    report_events.py codex -- codex exec --json -
    report_events.py gemini -- gemini --output-format json

Each of these programs prints JSON about its own work. This program reads it and tells Overnight:
the log gets readable lines instead of JSON, the task gets the agent's last answer as its output and
the tokens and the cost as far as the agent knows them, and a refused login or a used-up rate limit
ends with the exit code that means it. The prompt stays on stdin, for the agent.

Only the standard library is used.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

BAD_USAGE, BAD_INPUT, NOT_AVAILABLE, NOT_PERMITTED = 64, 65, 69, 77
NOT_FOUND = 127
LOGIN_REFUSED = re.compile(r"\b40[13]\b|api.?key|authenticat|unauthori", re.IGNORECASE)
LIMIT_REACHED = re.compile(
    r"\b(429|529)\b|rate.?limit|usage limit|overloaded|quota|resource.?exhausted", re.IGNORECASE
)
# What the exit codes of Gemini CLI mean, as exit codes for Overnight.
GEMINI_CODES = {41: NOT_PERMITTED, 42: BAD_INPUT}


@dataclass(frozen=True)
class Report:
    """What one message of an agent says; everything in it may be missing.

    `text` is for the log, `answer` replaces earlier answers, `error` is why the agent failed.
    """

    text: str = ""
    answer: str | None = None
    error: str | None = None
    usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


def claude_report(message: Mapping[str, Any]) -> Report:
    """Read a line of `claude --print --output-format stream-json`."""
    if message.get("type") == "assistant":
        parts = (message.get("message") or {}).get("content") or ()
        return Report(text="\n".join(filter(None, map(_claude_part, parts))))
    if message.get("type") != "result":
        return Report()
    answer = str(message.get("result") or message.get("subtype") or "")
    usage = message.get("usage") or {}
    cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
    return Report(
        answer=None if message.get("is_error") else answer,
        error=answer if message.get("is_error") else None,
        usd=message.get("total_cost_usd") or 0.0,
        input_tokens=sum(usage.get(name) or 0 for name in ("input_tokens", *cached)),
        output_tokens=usage.get("output_tokens") or 0,
    )


def _claude_part(part: Mapping[str, Any]) -> str:
    if part.get("type") == "tool_use":
        return f"[{part.get('name')}] {json.dumps(part.get('input'))}"
    return str(part.get("text") or "")


def codex_report(message: Mapping[str, Any]) -> Report:
    """Read a line of `codex exec --json`; it knows tokens, and no cost."""
    match message.get("type"):
        case "item.completed":
            return _codex_item(message.get("item") or {})
        case "turn.completed":
            usage = message.get("usage") or {}
            return Report(
                input_tokens=usage.get("input_tokens") or 0,
                output_tokens=usage.get("output_tokens") or 0,
            )
        case "turn.failed":
            return Report(error=str((message.get("error") or {}).get("message") or "it failed"))
        case _:
            return Report()


def _codex_item(item: Mapping[str, Any]) -> Report:
    match item.get("type"):
        case "agent_message":
            return Report(text=str(item.get("text")), answer=str(item.get("text")))
        case "command_execution":
            return Report(text=f"[command] {item.get('command')}")
        case "error":
            return Report(text=f"[error] {item.get('message')}")
        case _:
            return Report()


def gemini_report(message: Mapping[str, Any]) -> Report:
    """Read the answer of `gemini --output-format json`; it knows tokens, and no cost."""
    models = ((message.get("stats") or {}).get("models") or {}).values()
    tokens = [model.get("tokens") or {} for model in models]
    error = message.get("error")
    return Report(
        text=str(message.get("response") or ""),
        answer=message.get("response"),
        error=None if error is None else str(error.get("message")),
        input_tokens=sum(each.get("prompt") or 0 for each in tokens),
        output_tokens=sum(each.get("candidates") or 0 for each in tokens),
    )


def messages_by_line(lines: Iterable[str]) -> Iterator[Mapping[str, Any] | str]:
    """Yield the object of each line; a line that is none is yielded as it is."""
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        yield message if isinstance(message, dict) else line.rstrip("\n")


def message_of_all(lines: Iterable[str]) -> Iterator[Mapping[str, Any] | str]:
    """Yield the one object that all lines are together; else they are yielded as they are."""
    yield from messages_by_line(["".join(lines)])


Messages = Callable[[Iterable[str]], Iterator[Mapping[str, Any] | str]]
FORMATS: dict[str, tuple[Messages, Callable[[Mapping[str, Any]], Report]]] = {
    "claude": (messages_by_line, claude_report),
    "codex": (messages_by_line, codex_report),
    "gemini": (message_of_all, gemini_report),
}


class Reporter:
    """Passes reports on: texts to stdout, which is the log, the rest as events."""

    def __init__(self, events: int | None) -> None:
        self._events = events
        self.error: str | None = None

    def send(self, report: Report) -> None:
        """Pass one report on."""
        if report.text:
            print(report.text, flush=True)
        if report.usd or report.input_tokens or report.output_tokens:
            self._event(
                "cost",
                usd=report.usd,
                input_tokens=report.input_tokens,
                output_tokens=report.output_tokens,
            )
        if report.answer is not None:
            lines = report.answer.strip().splitlines() or [""]
            self._event("result", output={"text": report.answer, "summary": lines[-1]})
        self.error = report.error or self.error

    def _event(self, event: str, **fields: object) -> None:
        if self._events is not None:
            line = json.dumps({"event": event, **fields}).encode() + b"\n"
            while line:
                line = line[os.write(self._events, line) :]


def exit_code(name: str, code: int, error: str | None) -> int:
    """Return the exit code that tells Overnight how the agent ended."""
    if error is None:
        return GEMINI_CODES.get(code, code) if name == "gemini" else code
    if LOGIN_REFUSED.search(error):
        return NOT_PERMITTED
    return NOT_AVAILABLE if LIMIT_REACHED.search(error) else code or 1


def main(arguments: list[str]) -> int:
    """Run the agent to its end; return the exit code."""
    if len(arguments) < 3 or arguments[0] not in FORMATS or arguments[1] != "--":  # noqa: PLR2004
        print(f"usage: report_events.py {'|'.join(FORMATS)} -- COMMAND …", file=sys.stderr)
        return BAD_USAGE
    name, _, *command = arguments
    messages_of, report_of = FORMATS[name]
    descriptor = os.environ.get("OVERNIGHT_EVENTS_FD")
    reporter = Reporter(None if descriptor is None else int(descriptor))
    # At a stop every process of the sandbox gets SIGTERM: the agent ends, and then this program.
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr)
        return NOT_FOUND
    for message in messages_of(agent.stdout or ()):
        reporter.send(Report(text=message) if isinstance(message, str) else report_of(message))
    code = agent.wait()
    if reporter.error is not None:
        print(reporter.error, file=sys.stderr)
    return exit_code(name, code if code >= 0 else 128 - code, reporter.error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
