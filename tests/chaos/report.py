"""What a run comes to: counts, what was found broken, and the seed to see it again."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass
class Report:
    """One run, in numbers and findings; without findings it passed."""

    seed: int
    seconds: float
    work: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    consequences: dict[str, int] = field(default_factory=dict)
    findings: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing was found broken."""
        return not self.findings

    def add(self, findings: Mapping[str, list[str]]) -> None:
        """Take up what a check found."""
        for what, ones in findings.items():
            self.findings.setdefault(what, []).extend(ones)

    def demand(self, at_least: Mapping[str, int]) -> None:
        """Find it broken if less than this was counted, whatever it was that was asked for."""
        counted = {**self.work, **self.faults, **self.consequences}
        short = [
            f"{what}: {counted.get(what, 0)}, not {count}"
            for what, count in at_least.items()
            if counted.get(what, 0) < count
        ]
        if short:
            self.add({"less than was asked for": short})

    def as_dict(self) -> dict[str, object]:
        """Return everything, for programs."""
        return {**asdict(self), "passed": self.passed}

    def text(self) -> str:
        """Return everything, for people."""
        lines = [f"chaos, seed {self.seed}, {self.seconds:g} s of faults"]
        for title, counts in (
            ("work", self.work),
            ("faults", self.faults),
            ("consequences", self.consequences),
        ):
            lines.append(f"\n{title}")
            lines += [f"  {count:>8}  {what}" for what, count in counts.items()]
        lines += ["", *self.notes]
        if self.passed:
            lines.append("\n0 lost, 0 accepted twice, 0 over a limit: every check passed")
        else:
            lines.append("\nBROKEN")
            for what, ones in self.findings.items():
                lines.append(f"  {what}")
                lines += [f"    {one}" for one in ones]
        lines.append(
            f"see it again: python -m tests.chaos --seconds {self.seconds:g} --seed {self.seed}"
        )
        return "\n".join(lines)
