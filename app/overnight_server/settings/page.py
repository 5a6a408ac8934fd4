"""Write the reference page of all settings from the model itself."""

from pathlib import Path

from overnight_server.settings.field_types import Secret, mark_of, other_names
from overnight_server.settings.model import Settings

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"

# Each heading stands before the setting it names; the model's order does the rest.
HEADINGS = {
    "allow_short_clocks": "The deployment",
    "database_url": "Servers",
    "api_host": "Faces and client",
    "handlers": "Workers",
    "poll_interval": "Clocks",
    "agent_poll_interval_sec": "Pull agents",
    "max_pending_per_user": "Limits and locks",
    "priority": "Tasks that say nothing else",
}

PREFACE = """\
# Settings

After this page you can set anything the deployment can be told. It is written by
`python -m overnight_server.settings`; do not edit it by hand.

- A value comes from the environment, else from `.env` in the working directory, else from the JSON
  file that `OVERNIGHT_CONFIG_FILE` names, else it is the default. An empty value means "not set".
- A wrong value, or an `OVERNIGHT_` name nobody knows, stops every process at its start, with a line
  that names the setting, what is legal and the nearest legal value.
- Durations are seconds, as a number or with units: `90`, `90s`, `1m30s`, `500ms`.
- Lists are separated by commas.
- A secret may stand in a file: `OVERNIGHT_API_KEY_FILE` names the file that holds
  `OVERNIGHT_API_KEY`. Give one of the two.
- Settings that belong together may come as one JSON object, in the environment or in the JSON file:
  `OVERNIGHT_PER_USER_SERIALIZATION='{"enabled": true, "lock_timeout_seconds": 3600}'`, and likewise
  `OVERNIGHT_RETRY` and `OVERNIGHT_SLOTS`.
- Three heartbeats must fit into one lease.
- `overnight config show` prints every value in force and where it came from; secrets are masked."""


def page() -> str:
    """Return the page."""
    lines = [PREFACE]
    for row in Settings().masked():
        if row.name in HEADINGS:
            lines.append(f"\n## {HEADINGS[row.name]}\n\n{_HEAD}")
        lines.append(
            f"| {_names(row.name, row.env)} | {_code(row.default)} "
            f"| {row.legal} | {row.description} |"
        )
    return "\n".join([*lines, ""])


_HEAD = "| Name | Default | Legal | Purpose |\n|---|---|---|---|"


def _names(name: str, env: str) -> str:
    field = Settings.model_fields[name]
    secret_file = [f"{env}_FILE"] if mark_of(field, Secret) else []
    return "<br>".join(f"`{known}`" for known in [env, *secret_file, *other_names(field)])


def _code(default: str) -> str:
    return default if default == "not set" else f"`{default}`"
