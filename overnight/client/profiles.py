"""Profiles: the addresses and keys of several servers, each under a name.

They are in `profiles.toml` in the user's configuration directory:

    default = "work"

    [work]
    url = "https://overnight.example"
    api_key_file = "~/.config/overnight/work.key"
"""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from overnight.errors import NotConfigured

DEFAULT = "default"


@dataclass(frozen=True)
class Profile:
    """A server under a name, and the file that holds its API key."""

    name: str
    url: str
    api_key_file: Path | None = None


def path() -> Path:
    """Return the path of the profiles file, whether or not it exists."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "overnight" / "profiles.toml"


def find(name: str | None) -> Profile | None:
    """Return the profile of this name; without a name the default profile, or None.

    Raises NotConfigured if no profile has the name.
    """
    profiles, default = read()
    wanted = name or default
    if wanted is None:
        return None
    if wanted not in profiles:
        names = f"known are {', '.join(sorted(profiles))}" if profiles else "there are none"
        raise NotConfigured(f"there is no profile {wanted!r} in {path()}: {names}")
    return profiles[wanted]


def read() -> tuple[dict[str, Profile], str | None]:
    """Return all profiles by name, and the name of the default profile."""
    try:
        content = tomllib.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NotConfigured(f"cannot read {path()}: {error}") from error
    default = content.pop(DEFAULT, None)
    profiles = {}
    for name, fields in content.items():
        if not isinstance(fields, dict) or not isinstance(fields.get("url"), str):
            raise NotConfigured(f"profile {name!r} in {path()} has no url")
        key_file = fields.get("api_key_file")
        profiles[name] = Profile(name, fields["url"], Path(key_file) if key_file else None)
    return profiles, default
