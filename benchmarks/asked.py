"""What was asked of a benchmark on the command line."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Kind = Literal["full", "trial", "quick"]
T = TypeVar("T")
#: How often each contestant has its turn in a measurement; one with fewer is a trial.
ROUNDS = 3


@dataclass(frozen=True)
class Asked:
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
    def turns(self) -> range:
        """The rounds to go; a quick run goes round once."""
        return range(self.rounds or self.choose(1, ROUNDS))

    def wants(self, who: str) -> bool:
        """Whether a contestant takes part."""
        return not self.only or any(who.startswith(name) for name in self.only)
