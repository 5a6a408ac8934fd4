"""The error that refuses wrong settings, with one line per problem."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SettingProblem:
    """One problem: the setting's environment name, and a line that explains it."""

    setting: str
    line: str


class SettingsError(ValueError):
    """The settings are wrong; each line of the message is one problem."""

    def __init__(self, problems: Iterable[SettingProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.line for problem in self.problems))
