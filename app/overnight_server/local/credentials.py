"""Generated passwords, kept in a file that only its owner can read."""

import json
import os
import secrets
from pathlib import Path


class Credentials:
    """The generated passwords of one home, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def password(self, name: str) -> str:
        """Return the password stored under this name; the first call generates it."""
        passwords = self._read()
        if name not in passwords:
            passwords[name] = secrets.token_urlsafe(24)
            write_private(self.path, json.dumps(passwords, indent=2) + "\n")
        return passwords[name]

    def _read(self) -> dict[str, str]:
        try:
            return {str(k): str(v) for k, v in json.loads(self.path.read_text()).items()}
        except FileNotFoundError:
            return {}


def write_private(path: Path, text: str) -> None:
    """Replace a whole file at once; only the owner can read it, and no reader sees a half file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
