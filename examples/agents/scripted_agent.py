"""An agent without a model: it does what the lines of its prompt say, and needs no account.

It shows how a program works with Overnight: the prompt is on stdin, files are in the working
directory, and events go to the descriptor that OVERNIGHT_EVENTS_FD names. Its instructions, one per
line; other lines are ignored:

    write PATH TEXT             write a line of text into a file
    replace PATH OLD NEW        replace a word in a file
    run COMMAND ARGUMENT…       run a program; if it fails, the agent fails
    cost USD                    report the cost of a model call
    print TEXT                  write a line to the log
    sleep SECONDS               wait

Only the standard library is used.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

BAD_USAGE = 64


class Agent:
    """Carries out instructions, and remembers which files it has changed."""

    def __init__(self, events: int | None) -> None:
        self._events = events
        self.changed: list[str] = []

    def report(self, event: str, **fields: object) -> None:
        """Write one event, as a line of JSON."""
        if self._events is not None:
            os.write(self._events, json.dumps({"event": event, **fields}).encode() + b"\n")

    def carry_out(self, words: list[str]) -> None:
        """Carry out one instruction; raise ValueError if its arguments are wrong."""
        match words:
            case ["write", path, *text]:
                self._change(path, " ".join(text) + "\n")
            case ["replace", path, old, new]:
                self._change(path, Path(path).read_text().replace(old, new))
            case ["run", *command] if command:
                subprocess.run(command, check=True)
            case ["cost", usd]:
                self.report("cost", usd=float(usd), input_tokens=900, output_tokens=150)
            case ["print", *text]:
                sys.stdout.write(" ".join(text) + "\n")
                sys.stdout.flush()
            case ["sleep", seconds]:
                time.sleep(float(seconds))
            case _:
                raise ValueError(f"cannot carry out: {shlex.join(words)}")

    def _change(self, path: str, text: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
        self.changed.append(path)


INSTRUCTIONS = ("write", "replace", "run", "cost", "print", "sleep")


def instructions(prompt: str) -> list[list[str]]:
    """Return the words of each line that is an instruction; raise ValueError for wrong quotes."""
    lines = [line for line in prompt.splitlines() if line.strip()]
    return [shlex.split(line) for line in lines if line.split()[0] in INSTRUCTIONS]


def main() -> int:
    """Read the prompt, carry out its instructions, and report the result."""
    descriptor = os.environ.get("OVERNIGHT_EVENTS_FD")
    agent = Agent(None if descriptor is None else int(descriptor))
    try:
        todo = instructions(sys.stdin.read())
    except ValueError as error:
        sys.stderr.write(f"the prompt is wrong: {error}\n")
        return BAD_USAGE
    for number, words in enumerate(todo):
        agent.report("progress", fraction=number / len(todo), message=shlex.join(words))
        try:
            agent.carry_out(words)
        except subprocess.CalledProcessError as error:
            sys.stderr.write(f"{shlex.join(words)} failed with exit code {error.returncode}\n")
            return 1
        except (OSError, ValueError) as error:
            sys.stderr.write(f"{error}\n")
            return BAD_USAGE
    summary = f"Carried out {len(todo)} instructions."
    agent.report("result", output={"summary": summary, "files_changed": agent.changed})
    return 0


if __name__ == "__main__":
    sys.exit(main())
