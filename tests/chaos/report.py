"""The report of a chaos run: counts, findings, and the seed to repeat it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass
class Report:
    """Counts and findings of one run; a run without findings has passed."""

    seed: int
    seconds: float
    work: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    consequences: dict[str, int] = field(default_factory=dict)
    findings: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no check found anything."""
        return not self.findings

    def add(self, findings: Mapping[str, list[str]]) -> None:
        """Add the findings of a check."""
        for what, ones in findings.items():
            self.findings.setdefault(what, []).extend(ones)

    def require(self, at_least: Mapping[str, int]) -> None:
        """Add a finding for each count that is below its minimum."""
        counted = {**self.work, **self.faults, **self.consequences}
        below = [
            f"{what}: {counted.get(what, 0)}, not {count}"
            for what, count in at_least.items()
            if counted.get(what, 0) < count
        ]
        if below:
            self.add({"counts below the minimum": below})

    def as_dict(self) -> dict[str, object]:
        """Return the report as a JSON object."""
        return {**asdict(self), "passed": self.passed}

    def text(self) -> str:
        """Return the report as text for a terminal."""
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
            lines.append(
                "\nevery check passed: no task lost, no result accepted twice, no limit exceeded"
            )
        else:
            lines.append("\nFAILED")
            for what, ones in self.findings.items():
                lines.append(f"  {what}")
                lines += [f"    {one}" for one in ones]
        lines.append(
            f"repeat it with: python -m tests.chaos --seconds {self.seconds:g} --seed {self.seed}"
        )
        return "\n".join(lines)
