"""Load the settings; wrong ones raise `SettingsError` with a line per problem."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from overnight_server.settings.field_types import (
    describe_legal_values,
    display_value,
    env_of,
    nearest_legal,
)
from overnight_server.settings.model import Settings
from overnight_server.settings.problems import SettingProblem, SettingsError
from overnight_server.settings.sources import SourceValue, gather

DOTENV = Path(".env")


def load(environ: Mapping[str, str] | None = None, *, dotenv: Path = DOTENV) -> Settings:
    """Read the settings; raise `SettingsError` if any of them is wrong."""
    sources = gather(os.environ if environ is None else environ, dotenv)
    problems = sources.problems
    values: dict[str, Any] = {name: source.value for name, source in sources.values.items()}
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise SettingsError([*problems, *_wrong_values(error, sources.values)]) from None
    if problems:
        raise SettingsError(problems)
    return settings.with_origins({name: source.origin for name, source in sources.values.items()})


@cache
def current() -> Settings:
    """Return the settings of this process, read once."""
    return load()


def _wrong_values(
    error: ValidationError, sources: Mapping[str, SourceValue]
) -> list[SettingProblem]:
    """Translate pydantic's errors into problems that name settings as users write them."""
    return [
        _wrong_value(str(detail["loc"][0]), sources, detail["msg"])
        if detail["loc"]
        else _wrong_combination(detail["msg"])
        for detail in error.errors(include_url=False, include_input=False)
    ]


def _wrong_value(name: str, sources: Mapping[str, SourceValue], message: str) -> SettingProblem:
    field = Settings.model_fields[name]
    value, written_name = sources[name].value, sources[name].name
    nearest = nearest_legal(field, value)
    hint = f" (nearest: {nearest})" if nearest else ""
    if name == "fault":
        # The format may be right and a name in it unknown; the message of the reader says which.
        hint = f" ({message.removeprefix('Value error, ')})"
    legal = describe_legal_values(field)
    line = f"{written_name}={display_value(field, value)}: must be {legal}{hint}"
    return SettingProblem(env_of(name), line)


def _wrong_combination(message: str) -> SettingProblem:
    line = message.removeprefix("Value error, ")
    return SettingProblem(line.partition("=")[0], line)
