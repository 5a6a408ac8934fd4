"""What was asked of a benchmark on the command line."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Kind = Literal["full", "trial", "quick"]
T = TypeVar("T")


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
        """Say what its results are worth: only an unchanged run in full is a measurement."""
        if self.quick:
            return "quick"
        return "trial" if self.jobs or self.only or self.settings else "full"

    def choose(self, quick: T, full: T) -> T:
        """Return the size that fits."""
        return quick if self.quick else full

    def rounds_or(self, full: int) -> int:
        """Return how often to go round; a quick run goes round once."""
        return self.rounds or self.choose(1, full)

    def wants(self, who: str) -> bool:
        """Whether a contestant takes part."""
        return not self.only or any(who.startswith(name) for name in self.only)
