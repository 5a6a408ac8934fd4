"""Passwords made once and kept in a file that only its owner may read."""

import json
import os
import secrets
from pathlib import Path


class Credentials:
    """The generated passwords of one home, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def password(self, name: str) -> str:
        """Return the password kept under this name, making it on the first call."""
        known = self._read()
        if name not in known:
            known[name] = secrets.token_urlsafe(24)
            write_private(self.path, json.dumps(known, indent=2) + "\n")
        return known[name]

    def _read(self) -> dict[str, str]:
        try:
            return {str(k): str(v) for k, v in json.loads(self.path.read_text()).items()}
        except FileNotFoundError:
            return {}


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, never readable by others and never half written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
