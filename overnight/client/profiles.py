"""Profiles: servers one speaks to often, each with its address and its key, under one name.

They stand in `profiles.toml` under the user's configuration directory:

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
    """One server under a name, and the file that holds its key."""

    name: str
    url: str
    api_key_file: Path | None = None


def path() -> Path:
    """Return where the profiles stand, whether or not there are any."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "overnight" / "profiles.toml"


def find(name: str | None) -> Profile | None:
    """Return the profile of this name, or without a name the default one, if there is one."""
    known, default = read()
    wanted = name or default
    if wanted is None:
        return None
    if wanted not in known:
        legal = f"known are {', '.join(sorted(known))}" if known else "there are none"
        raise NotConfigured(f"there is no profile {wanted!r} in {path()}: {legal}")
    return known[wanted]


def read() -> tuple[dict[str, Profile], str | None]:
    """Return every profile, and the name of the default one."""
    try:
        told = tomllib.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NotConfigured(f"cannot read {path()}: {error}") from error
    default = told.pop(DEFAULT, None)
    known = {}
    for name, fields in told.items():
        if not isinstance(fields, dict) or not isinstance(fields.get("url"), str):
            raise NotConfigured(f"profile {name!r} in {path()} has no url")
        key_file = fields.get("api_key_file")
        known[name] = Profile(name, fields["url"], Path(key_file) if key_file else None)
    return known, default
