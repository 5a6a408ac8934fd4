"""Load the settings, or refuse them with a line for each problem."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from overnight_server.settings.field_types import env_of, legal_words, nearest_legal, shown
from overnight_server.settings.model import Settings
from overnight_server.settings.problems import Problem, SettingsError
from overnight_server.settings.sources import Given, gather

DOTENV = Path(".env")


def load(environ: Mapping[str, str] | None = None, *, dotenv: Path = DOTENV) -> Settings:
    """Read the settings anew; raise `SettingsError` if anything about them is wrong."""
    found = gather(os.environ if environ is None else environ, dotenv)
    problems = found.problems
    values: dict[str, Any] = {name: given.value for name, given in found.given.items()}
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise SettingsError([*problems, *_wrong_values(error, found.given)]) from None
    if problems:
        raise SettingsError(problems)
    return settings.with_origins({name: given.origin for name, given in found.given.items()})


@cache
def current() -> Settings:
    """Return the settings of this process, read once."""
    return load()


def _wrong_values(error: ValidationError, given: Mapping[str, Given]) -> list[Problem]:
    """Put pydantic's findings into the words of the deployment."""
    return [
        _wrong_value(str(finding["loc"][0]), given, finding["msg"])
        if finding["loc"]
        else _wrong_together(finding["msg"])
        for finding in error.errors(include_url=False, include_input=False)
    ]


def _wrong_value(name: str, given: Mapping[str, Given], message: str) -> Problem:
    field = Settings.model_fields[name]
    value, written = given[name].value, given[name].name
    nearest = nearest_legal(field, value)
    hint = f" (nearest: {nearest})" if nearest else ""
    if name == "fault":
        # Its form may be right and its words unknown; whoever read them says which.
        hint = f" ({message.removeprefix('Value error, ')})"
    line = f"{written}={shown(field, value)}: must be {legal_words(field)}{hint}"
    return Problem(env_of(name), line)


def _wrong_together(message: str) -> Problem:
    line = message.removeprefix("Value error, ")
    return Problem(line.partition("=")[0], line)
