"""Gather settings from where people write them: environment, `.env`, secret files, a JSON file."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dotenv import dotenv_values

from overnight_server.settings.field_types import (
    PREFIX,
    Secret,
    env_of,
    mark_of,
    nearest_word,
    other_names,
)
from overnight_server.settings.model import Settings
from overnight_server.settings.problems import Problem

FIELDS = Settings.model_fields
# Settings that may also be given together, as one JSON object: S001's and S003's way.
GROUPS = ("per_user_serialization", "retry", "slots")
# Settings of older designs that are accepted, have no effect, and say so.
RETIRED = {"agent_url": "agents are reached through the queue alone"}
CONFIG_FILE = env_of("config_file")


class Given(NamedTuple):
    """A value as somebody wrote it, the kind of place, and the name it was written under."""

    value: object
    origin: str
    name: str


@dataclass
class Gathered:
    """What was found, by setting, and what was wrong with it on the way."""

    given: dict[str, Given] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, setting: str, line: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(setting, line))


def known_names() -> set[str]:
    """Return every environment name that means something."""
    groups = {env_of(group) for group in GROUPS}
    return groups | set(_by_env()) | set(_by_file_env())


def gather(environ: Mapping[str, str], dotenv: Path) -> Gathered:
    """Collect all values; the environment outranks `.env`, and `.env` the JSON file."""
    # An empty value is what compose files pass on for "not set".
    layers = {
        ".env": {
            name: value for name, value in dotenv_values(dotenv, interpolate=False).items() if value
        },
        "env": {name: value for name, value in environ.items() if value},
    }
    found = Gathered()
    config_file = layers["env"].get(CONFIG_FILE) or layers[".env"].get(CONFIG_FILE)
    if config_file:
        _read_config_file(Path(config_file).expanduser(), found)
    for origin, values in layers.items():
        _read_names(values, origin, found)
    return found


def _read_names(values: Mapping[str, str], origin: str, found: Gathered) -> None:
    """Take one layer, from its weakest way of saying something to its strongest."""
    _refuse_unknown(values, origin, found)
    for group in GROUPS:
        if env_of(group) in values:
            _read_group(group, values[env_of(group)], origin, found)
    for env, name in _by_env().items():
        if env in values:
            found.given[name] = Given(values[env], origin, env)
    for env, name in _by_file_env().items():
        if env in values:
            _read_secret_file(name, env, values, found)


def _by_env() -> dict[str, str]:
    """Map environment names to settings, further names first so that the proper one wins."""
    further = {env: name for name, field in FIELDS.items() for env in other_names(field)}
    return further | {env_of(name): name for name in FIELDS}


def _by_file_env() -> dict[str, str]:
    secrets = (name for name, field in FIELDS.items() if mark_of(field, Secret))
    return {f"{env_of(name)}_FILE": name for name in secrets}


def _refuse_unknown(values: Mapping[str, str], origin: str, found: Gathered) -> None:
    where = " in .env" if origin == ".env" else ""
    known = known_names()
    for env in sorted(env for env in values if env.startswith(PREFIX) and env not in known):
        instead = RETIRED.get(env.removeprefix(PREFIX).lower())
        if instead:
            _report_ignored(env, instead)
        else:
            # Its value stays untold: it may be a secret under a misspelt name.
            nearest = nearest_word(env, known)
            found.refuse(env, f"{env}{where}: no such setting (nearest: {nearest})")


def _read_secret_file(name: str, env: str, values: Mapping[str, str], found: Gathered) -> None:
    if env_of(name) in values:
        found.refuse(env, f"{env} and {env_of(name)} are both given: keep one of them")
        return
    try:
        text = Path(values[env]).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        found.refuse(env, f"{env}={values[env]}: must be a readable file ({_reason(error)})")
        return
    found.given[name] = Given(text, "file", env)


def _read_group(group: str, text: str, origin: str, found: Gathered) -> None:
    env = env_of(group)
    try:
        inner = json.loads(text)
    except ValueError:
        inner = None
    if not isinstance(inner, dict):
        found.refuse(env, f"{env}={text}: must be a JSON object")
        return
    _take({group: inner}, origin, env, found)


def _read_config_file(path: Path, found: Gathered) -> None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        line = f"{CONFIG_FILE}={path}: must be a readable JSON file ({_reason(error)})"
        found.refuse(CONFIG_FILE, line)
        return
    if not isinstance(content, dict):
        found.refuse(CONFIG_FILE, f"{CONFIG_FILE}={path}: must hold one JSON object")
        return
    _take(content, "file", str(path), found)


def _take(content: Mapping[str, object], origin: str, where: str, found: Gathered) -> None:
    """Take the settings a JSON object holds, under their own or another document's names."""
    known = {env.removeprefix(PREFIX).lower(): name for env, name in _by_env().items()}
    for written, name, value in _flatten(content):
        place = f"{written} in {where}"
        if name in RETIRED:
            _report_ignored(place, RETIRED[name])
        elif name not in known:
            nearest = nearest_word(name, known)
            found.refuse(name, f"{place}: no such setting (nearest: {nearest})")
        elif value is not None:
            found.given[known[name]] = Given(value, origin, place)


def _report_ignored(setting: str, instead: str) -> None:
    """Log that a retired setting has no effect."""
    # Users' commands read settings too and may be installed without structlog; they keep no log.
    with suppress(ModuleNotFoundError):
        from overnight_server.telemetry import Event, emit  # noqa: PLC0415

        emit(Event.SETTING_IGNORED, setting=setting, instead=instead)


def _flatten(content: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """Yield each value with its name as written and as a setting's.

    Inside a group a key may leave out its group's name or bear it already: `retry.strategy` is
    `retry_strategy`, and `retry.retry_on` is `retry_on`.
    """
    for key, value in content.items():
        if key in GROUPS and isinstance(value, dict):
            for inner, part in value.items():
                yield f"{key}.{inner}", inner if inner in FIELDS else f"{key}_{inner}", part
        else:
            yield key, key, value


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "cannot be read"
