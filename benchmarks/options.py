"""What was options of a benchmark on the command line, how it is refused and how taken back."""

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
    """Quick or in full, how many rounds and jobs, against whom, and with which settings of ours."""

    quick: bool = False
    rounds: int | None = None
    jobs: int | None = None
    only: Collection[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> Kind:
        """Say what its results are worth: only a whole, unchanged run is a measurement."""
        if self.quick:
            return "quick"
        is_shorter = self.rounds is not None and self.rounds < ROUNDS
        is_trial = is_shorter or self.jobs or self.only or self.settings
        return "trial" if is_trial else "full"

    def choose(self, quick: T, full: T) -> T:
        """Return the size that fits."""
        return quick if self.quick else full

    @property
    def rounds_to_run(self) -> range:
        """The rounds to go; a quick run goes round once."""
        return range(self.rounds or self.choose(1, ROUNDS))

    def wants(self, who: str) -> bool:
        """Whether a contestant takes part."""
        return not self.only or any(who.startswith(name) for name in self.only)


class Parser(argparse.ArgumentParser):
    """Refuses in one line; what there is else, `--help` says."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and leave."""
        self.exit(2, f"{self.prog}: {message}\n")


def at_least_one(words: str) -> int:
    """Read how many: with none or fewer, nothing would be seen."""
    try:
        count = int(words)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{words!r} must be a whole number from 1, such as 3")
    return count


def exit_cleanly_on_signals() -> None:
    """Let SIGTERM and Ctrl-C end this process like an error would, and without many words.

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
