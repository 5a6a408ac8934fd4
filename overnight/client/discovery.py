"""Find the address and the API key of the service: environment, profile, or local stack.

The clients and the command line use the same order:

1. what the caller passes,
2. a profile that the caller names,
3. OVERNIGHT_URL and OVERNIGHT_API_KEY (or OVERNIGHT_API_KEY_FILE),
4. the profile in OVERNIGHT_PROFILE, else the default profile,
5. the local stack (`overnight up`) of this directory or of one above it.
"""

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from overnight.client import profiles
from overnight.errors import NotConfigured

if sys.platform != "win32":
    import fcntl

HOME = Path(".overnight")
# Only the home of a local stack has this file.
HOME_MARKER = "home.json"
_NAMES = ("URL", "API_KEY", "API_KEY_FILE", "PROFILE", "HOME")


@dataclass(frozen=True)
class ServerAddress:
    """The address of a service, the API key to send, and where the key was found."""

    url: str
    api_key: str
    key_source: str = field(default="", compare=False)


@dataclass(frozen=True)
class Environment:
    """The OVERNIGHT_ variables that locate a service."""

    url: str | None = None
    api_key: str | None = None
    profile: str | None = None
    home: Path = HOME

    @classmethod
    def read(cls) -> "Environment":
        """Return the variables of this process; an empty value counts as not set."""
        values = {name: os.environ.get(f"OVERNIGHT_{name}") or None for name in _NAMES}
        key, key_file = values["API_KEY"], values["API_KEY_FILE"]
        if key is None and key_file is not None:
            key = read_key(Path(key_file))
        home = Path(values["HOME"]).expanduser() if values["HOME"] else HOME
        return cls(values["URL"], key, values["PROFILE"], home)


class NoServer(NotConfigured):
    """No address was passed, the environment and the profiles have none, no local stack runs."""


class NoKey(NotConfigured):
    """There is no API key for the address."""


def find_server(
    environment: Environment,
    *,
    url: str | None = None,
    api_key: str | None = None,
    key_file: Path | None = None,
    profile: str | None = None,
) -> ServerAddress:
    """Return the address and the key to use, in the order that the module describes.

    Raises NoServer or NoKey if one of them is missing, and NotConfigured if one is malformed.
    """
    home = find_home(environment.home)
    local_url = running_at(home)
    chosen = None
    if not url and (profile or not environment.url):
        chosen = profiles.find(profile or environment.profile)
    address = url or (chosen.url if chosen else None) or environment.url or local_url
    if address is None:
        raise NoServer(
            f"no Overnight server was found: pass url=…, set OVERNIGHT_URL, or start the local"
            f" stack with `overnight up` in this directory or one above it (looked for {home})"
        )
    if not address.startswith(("http://", "https://")):
        raise NotConfigured(f"{address!r} is not an http:// or https:// address")
    file = key_file or (chosen.api_key_file if chosen else None)
    key = api_key or (read_key(file) if file else environment.api_key)
    key_source = "the caller" if api_key else _key_source(file, None if key_file else chosen)
    # The local stack's key is sent to the local stack only, never to another server.
    if key is None and local_url and address.rstrip("/") == local_url.rstrip("/"):
        key, key_source = _local_key(home), f"{home / 'api.key'}, the key of the local stack"
    if key is None:
        raise NoKey(f"no API key for {address}: pass api_key=… or set OVERNIGHT_API_KEY")
    return ServerAddress(address, key, key_source)


def _key_source(file: Path | None, profile: profiles.Profile | None) -> str:
    if file is None:
        return "OVERNIGHT_API_KEY or OVERNIGHT_API_KEY_FILE"
    return f"{file}, the file of profile {profile.name!r}" if profile else str(file)


def find_home(configured: Path, start: Path | None = None) -> Path:
    """Return the directory of the local stack, found from anywhere inside a project.

    A relative `configured` is searched in `start` (the current directory by default) and all
    directories above it. If none exists, the result is the one that would be created in `start`.
    """
    start = (start or Path.cwd()).absolute()
    for directory in (start, *start.parents):
        if (directory / configured / HOME_MARKER).exists():
            return directory / configured
    return start / configured


def running_at(home: Path) -> str | None:
    """Return the API address of the local stack of this home; None if it is not running."""
    connection, lock = _read_json(home / "connection.json"), _read_json(home / "lock")
    address = connection.get("api_url")
    # A killed stack leaves its connection.json behind, so the lock must be held by its process.
    if not address or connection.get("pid") != lock.get("pid") or not _is_held(home / "lock"):
        return None
    return str(address)


def read_key(path: Path) -> str:
    """Return the API key in a file; raises NotConfigured if there is none."""
    try:
        key = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotConfigured(f"cannot read the API key from {path}: {error}") from error
    if not key:
        raise NotConfigured(f"{path} holds no API key")
    return key


def _local_key(home: Path) -> str | None:
    try:
        return (home / "api.key").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _is_held(lock: Path) -> bool:
    # The local stack does not run on Windows, which has no fcntl.
    if sys.platform == "win32":
        return False
    try:
        with lock.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
