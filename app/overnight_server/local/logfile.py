"""One service's log file, which never grows beyond two of its size limits."""

from pathlib import Path

DEFAULT_LIMIT = 10_000_000


class LogFile:
    """Append lines to a file; when it is full, it becomes `<name>.1` and a new one begins."""

    def __init__(self, path: Path, *, limit: int = DEFAULT_LIMIT) -> None:
        self.path = path
        self.limit = limit
        self._open()

    def _open(self) -> None:
        # Unbuffered, because a log is read when its writer has just died.
        self._file = self.path.open("ab", buffering=0)
        self.path.chmod(0o600)

    def append(self, line: str) -> None:
        """Add one line."""
        self._file.write(line.encode(errors="replace") + b"\n")
        if self._file.tell() >= self.limit:
            self.close()
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._open()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def tail(path: Path, lines: int) -> str:
    """Return the last lines of a log file, or nothing if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - lines * 400))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
