"""Read settings from their sources: environment, `.env`, secret files, a JSON file."""

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
    aliases,
    annotation_of,
    env_of,
    nearest_name,
)
from overnight_server.settings.model import Settings
from overnight_server.settings.problems import SettingProblem

FIELDS = Settings.model_fields
# Settings that can also be written as one JSON object, as in S001 and S003.
GROUPS = ("per_user_serialization", "retry", "slots")
# Settings of older designs: they are accepted, have no effect, and are logged as ignored.
RETIRED = {
    "agent_url": "agents are reached through the queue alone",
    "agent_heartbeat_interval_sec": "an agent sends three heartbeats within agent_stale_after_sec",
    "agent_poll_interval_sec": "a request for a task waits until there is one",
    "eligible_users_per_claim": "a pass considers as many users as its free slots need",
    "leader_lease": "several dispatchers share the work without a leader",
}
# What a worker tells a command; a process of Overnight that the command starts has no use for it.
COMMAND_VARIABLES = frozenset(
    {"OVERNIGHT_EVENTS_FD", "OVERNIGHT_INPUTS_FILE", "OVERNIGHT_PAYLOAD_FILE"}
)
CONFIG_FILE = env_of("config_file")


class SourceValue(NamedTuple):
    """A value as it was written, the kind of source, and the name it was written under."""

    value: object
    origin: str
    name: str


@dataclass
class SettingSources:
    """The values by setting, and the problems met while reading them."""

    values: dict[str, SourceValue] = field(default_factory=dict)
    problems: list[SettingProblem] = field(default_factory=list)

    def add_problem(self, setting: str, line: str) -> None:
        """Record a problem with a setting."""
        self.problems.append(SettingProblem(setting, line))


def known_names() -> set[str]:
    """Return every environment name that is read."""
    groups = {env_of(group) for group in GROUPS}
    return groups | set(_by_env()) | set(_by_file_env())


def gather(environ: Mapping[str, str], dotenv: Path) -> SettingSources:
    """Read all sources; the environment overrides `.env`, and `.env` the JSON file."""
    # Compose files pass an empty value for a variable that is not set.
    layers = {
        ".env": {
            name: value for name, value in dotenv_values(dotenv, interpolate=False).items() if value
        },
        "env": {name: value for name, value in environ.items() if value},
    }
    sources = SettingSources()
    config_file = layers["env"].get(CONFIG_FILE) or layers[".env"].get(CONFIG_FILE)
    if config_file:
        _read_config_file(Path(config_file).expanduser(), sources)
    for origin, values in layers.items():
        _read_names(values, origin, sources)
    return sources


def _read_names(values: Mapping[str, str], origin: str, sources: SettingSources) -> None:
    """Read one source; groups first, then single names, then files, as the later override."""
    _report_unknown(values, origin, sources)
    for group in GROUPS:
        if env_of(group) in values:
            _read_group(group, values[env_of(group)], origin, sources)
    for env, name in _by_env().items():
        if env in values:
            sources.values[name] = SourceValue(values[env], origin, env)
    for env, name in _by_file_env().items():
        if env in values:
            _read_secret_file(name, env, values, sources)


def _by_env() -> dict[str, str]:
    """Map environment names to settings; aliases come first, so that the main name overrides."""
    by_alias = {env: name for name, field in FIELDS.items() for env in aliases(field)}
    return by_alias | {env_of(name): name for name in FIELDS}


def _by_file_env() -> dict[str, str]:
    secrets = (name for name, field in FIELDS.items() if annotation_of(field, Secret))
    return {f"{env_of(name)}_FILE": name for name in secrets}


def _report_unknown(values: Mapping[str, str], origin: str, sources: SettingSources) -> None:
    where = " in .env" if origin == ".env" else ""
    names = known_names()
    accepted = names | COMMAND_VARIABLES
    for env in sorted(env for env in values if env.startswith(PREFIX) and env not in accepted):
        instead = RETIRED.get(env.removeprefix(PREFIX).lower())
        if instead:
            _report_ignored(env, instead)
        else:
            # The value is not shown: it may be a secret under a misspelt name.
            nearest = nearest_name(env, names)
            sources.add_problem(env, f"{env}{where}: no such setting (nearest: {nearest})")


def _read_secret_file(
    name: str, env: str, values: Mapping[str, str], sources: SettingSources
) -> None:
    if env_of(name) in values:
        sources.add_problem(env, f"{env} and {env_of(name)} are both set: unset one of them")
        return
    try:
        text = Path(values[env]).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        sources.add_problem(env, f"{env}={values[env]}: must be a readable file ({_reason(error)})")
        return
    sources.values[name] = SourceValue(text, "file", env)


def _read_group(group: str, text: str, origin: str, sources: SettingSources) -> None:
    env = env_of(group)
    try:
        inner = json.loads(text)
    except ValueError:
        inner = None
    if not isinstance(inner, dict):
        sources.add_problem(env, f"{env}={text}: must be a JSON object")
        return
    _read_object({group: inner}, origin, env, sources)


def _read_config_file(path: Path, sources: SettingSources) -> None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        line = f"{CONFIG_FILE}={path}: must be a readable JSON file ({_reason(error)})"
        sources.add_problem(CONFIG_FILE, line)
        return
    if not isinstance(content, dict):
        sources.add_problem(CONFIG_FILE, f"{CONFIG_FILE}={path}: must hold one JSON object")
        return
    _read_object(content, "file", str(path), sources)


def _read_object(
    content: Mapping[str, object], origin: str, where: str, sources: SettingSources
) -> None:
    """Read the settings in a JSON object, under their names or aliases."""
    names = {env.removeprefix(PREFIX).lower(): name for env, name in _by_env().items()}
    for written_name, name, value in _flatten(content):
        place = f"{written_name} in {where}"
        if name in RETIRED:
            _report_ignored(place, RETIRED[name])
        elif name not in names:
            nearest = nearest_name(name, names)
            sources.add_problem(name, f"{place}: no such setting (nearest: {nearest})")
        elif value is not None:
            sources.values[names[name]] = SourceValue(value, origin, place)


def _report_ignored(setting: str, instead: str) -> None:
    """Log that a retired setting has no effect."""
    # Users' commands read settings too and may be installed without structlog; they keep no log.
    with suppress(ModuleNotFoundError):
        from overnight_server.telemetry import LogEvent, emit  # noqa: PLC0415

        emit(LogEvent.SETTING_IGNORED, setting=setting, instead=instead)


def _flatten(content: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """Yield each value with its name as written and the name of its setting.

    Inside a group a key may omit the group's name or include it: `retry.strategy` is
    `retry_strategy`, and `retry.retry_on` is `retry_on`.
    """
    for key, value in content.items():
        if key in GROUPS and isinstance(value, dict):
            for inner_key, inner_value in value.items():
                name = inner_key if inner_key in FIELDS else f"{key}_{inner_key}"
                yield f"{key}.{inner_key}", name, inner_value
        else:
            yield key, key, value


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "cannot be read"
