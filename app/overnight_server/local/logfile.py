"""One service's log file, whose size is limited by rotation."""

import io
from pathlib import Path

DEFAULT_LIMIT = 10_000_000


class LogFile(io.TextIOBase):
    """Append text to a file; at the size limit the file is renamed to `<name>.1`, a new one begins.

    At most two files of the limit's size exist, because an older `<name>.1` is replaced.
    """

    def __init__(self, path: Path, *, limit: int = DEFAULT_LIMIT) -> None:
        self.path = path
        self.limit = limit
        self._open()

    def _open(self) -> None:
        # Unbuffered, because a log is read when its writer has just died.
        self._file = self.path.open("ab", buffering=0)
        self.path.chmod(0o600)

    def write(self, text: str) -> int:
        """Append text, and rotate the file when it has reached its limit."""
        self._file.write(text.encode(errors="replace"))
        if self._file.tell() >= self.limit:
            self._file.close()
            self.path.replace(self.path.with_name(self.path.name + ".1"))
            self._open()
        return len(text)

    def append(self, line: str) -> None:
        """Append one line."""
        self.write(line + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def tail(path: Path, lines: int) -> str:
    """Return the last lines of a log file, or an empty text if the file does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - lines * 400))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
