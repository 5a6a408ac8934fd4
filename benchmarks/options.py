"""Options of a benchmark: parsed from the command line, with clear errors and a clean stop."""

import argparse
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn, TypeVar

Kind = Literal["full", "trial", "quick"]
T = TypeVar("T")
#: How often each contestant has its turn in a measurement; one with fewer is a trial.
ROUNDS = 3


@dataclass(frozen=True)
class Options:
    """Quick or full, the number of rounds and jobs, the queues, and the settings of Overnight."""

    quick: bool = False
    rounds: int | None = None
    jobs: int | None = None
    only: Collection[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """The kind of the results: only a full run without changes is a measurement."""
        if self.quick:
            return "quick"
        is_shorter = self.rounds is not None and self.rounds < ROUNDS
        is_trial = is_shorter or self.jobs or self.only or self.settings
        return "trial" if is_trial else "full"

    def choose(self, quick: T, full: T) -> T:
        """Return the size for a quick or a full run."""
        return quick if self.quick else full

    @property
    def rounds_to_run(self) -> range:
        """The rounds; a quick run has one."""
        return range(self.rounds or self.choose(1, ROUNDS))

    def wants(self, who: str) -> bool:
        """Return whether a queue takes part."""
        return not self.only or any(who.startswith(name) for name in self.only)


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def at_least_one(words: str) -> int:
    """Parse a number of at least one."""
    try:
        count = int(words)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{words!r} must be a whole number from 1, such as 3")
    return count


def exit_cleanly_on_signals() -> None:
    """Let SIGTERM and Ctrl-C end this process as an error does, without a traceback.

    So no server or directory is left.
    """

    def leave(number: int, _frame: object) -> NoReturn:
        # `timeout` sends it to the process and to its group; the second must not stop the tidying.
        signal.signal(signal.SIGTERM, lambda *_: None)
        # Who asks twice by hand means it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
