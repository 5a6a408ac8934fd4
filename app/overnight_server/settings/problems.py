"""What is wrong with the settings, one line for each problem."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing wrong with one setting."""

    setting: str
    line: str


class SettingsError(ValueError):
    """The settings were refused; each line of the message is one problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.line for problem in self.problems))
