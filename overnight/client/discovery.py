"""Find the service's address and key: the environment, a profile, or the local stack.

The clients and the command line look in the same places, in the same order.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from overnight.client import profiles
from overnight.errors import NotConfigured

if sys.platform != "win32":
    import fcntl

HOME = Path(".overnight")
# What tells a home from any other directory of that name.
MARK = "home.json"


@dataclass(frozen=True)
class Server:
    """Where to call, and as whom."""

    url: str
    api_key: str


@dataclass(frozen=True)
class Environment:
    """What the environment says, or whoever speaks for it."""

    url: str | None = None
    api_key: str | None = None
    profile: str | None = None
    home: Path = HOME

    @classmethod
    def here(cls) -> "Environment":
        """Return what the environment of this process says; an empty value says nothing."""
        said = {name: os.environ.get(f"OVERNIGHT_{name}") or None for name in _NAMES}
        key, file = said["API_KEY"], said["API_KEY_FILE"]
        if key is None and file is not None:
            key = read_key(Path(file))
        home = Path(said["HOME"]).expanduser() if said["HOME"] else HOME
        return cls(said["URL"], key, said["PROFILE"], home)


_NAMES = ("URL", "API_KEY", "API_KEY_FILE", "PROFILE", "HOME")


class NoServer(NotConfigured):
    """No address: none given, none in the environment or a profile, and no local stack runs."""


class NoKey(NotConfigured):
    """No key for the address that was found."""


def find(
    known: Environment,
    *,
    url: str | None = None,
    api_key: str | None = None,
    key_file: Path | None = None,
    profile: str | None = None,
) -> Server:
    """Settle where to call and with which key.

    What is given comes first, then a profile that is named, then the environment, then the default
    profile, then the deployment on this machine.
    """
    home = find_home(known.home)
    running = running_at(home)
    chosen = None
    if not url and (profile or not known.url):
        chosen = profiles.find(profile or known.profile)
    address = url or (chosen.url if chosen else None) or known.url or running
    if address is None:
        raise NoServer("no server is known here: give its url, or set OVERNIGHT_URL")
    if not address.startswith(("http://", "https://")):
        raise NotConfigured(f"{address!r} is no http:// or https:// address")
    file = key_file or (chosen.api_key_file if chosen else None)
    key = api_key or (read_key(file) if file else known.api_key)
    # The local key opens the local door only; it is never shown to another server.
    if key is None and running and address.rstrip("/") == running.rstrip("/"):
        key = _key_of(home)
    if key is None:
        raise NoKey(f"no API key for {address}: give it, or set OVERNIGHT_API_KEY")
    return Server(address, key)


def find_home(configured: Path, start: Path | None = None) -> Path:
    """Find the local stack's home from anywhere inside a project, as git finds its repository.

    A relative `configured` is looked for in `start` and all directories above it; if it is
    nowhere, the home is the one that would be made in `start`.
    """
    start = (start or Path.cwd()).absolute()
    for directory in (start, *start.parents):
        if (directory / configured / MARK).exists():
            return directory / configured
    return start / configured


def running_at(home: Path) -> str | None:
    """Return where the deployment of this home answers; None when it is not up."""
    written, holder = _read(home / "connection.json"), _read(home / "lock")
    address = written.get("api_url")
    # A killed deployment leaves its file behind, so ask who holds the home now.
    if not address or written.get("pid") != holder.get("pid") or not _is_held(home / "lock"):
        return None
    return str(address)


def read_key(path: Path) -> str:
    """Return the API key that a file holds."""
    try:
        key = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotConfigured(f"cannot read the API key from {path}: {error}") from error
    if not key:
        raise NotConfigured(f"{path} holds no API key")
    return key


def _key_of(home: Path) -> str | None:
    try:
        return (home / "api.key").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _is_held(lock: Path) -> bool:
    # No deployment runs where there are no such locks.
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


def _read(path: Path) -> dict[str, object]:
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}
