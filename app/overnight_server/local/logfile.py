"""One service's log file, whose size is limited by rotation."""

import io
from collections.abc import Callable
from pathlib import Path

DEFAULT_LIMIT = 10_000_000


class LogFile(io.TextIOBase):
    """Append text to a file; at the size limit the file is renamed to `<name>.1`, a new one begins.

    At most two files of the limit's size exist, because an older `<name>.1` is replaced. Writing
    never raises: what cannot be written (the disk is full) is lost, and the file says so when there
    is room again. `report` is called with the reason when that begins, and with None when it ends.
    """

    def __init__(
        self,
        path: Path,
        *,
        limit: int = DEFAULT_LIMIT,
        report: Callable[[str | None], None] = lambda _reason: None,
    ) -> None:
        self.path = path
        self.limit = limit
        self._report = report
        self._file: io.FileIO | None = None
        self._lost = 0

    def write(self, text: str) -> int:
        """Append text, and rotate the file when it has reached its limit."""
        try:
            self._append(self._gap() + text.encode(errors="replace"))
        except OSError as error:
            self._lose(error)
        else:
            self._resume()
        return len(text)

    def append(self, line: str) -> None:
        """Append one line."""
        self.write(line + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()

    def _append(self, content: bytes) -> None:
        file = self._opened()
        if file.write(content) < len(content):
            raise OSError("No space left for the whole line")
        if file.tell() >= self.limit:
            self._file = None
            file.close()
            self.path.replace(self.path.with_name(self.path.name + ".1"))

    def _opened(self) -> io.FileIO:
        if self._file is None:
            # Unbuffered, because a log is read when its writer has just died.
            self._file = io.FileIO(self.path, "a")
            self.path.chmod(0o600)
        return self._file

    def _gap(self) -> bytes:
        """Return the line that stands for what was lost; the last line may have been cut."""
        return f"\n({self._lost} writes to this file were lost)\n".encode() if self._lost else b""

    def _lose(self, error: OSError) -> None:
        self._lost += 1
        if self._lost == 1:
            self._report(error.strerror or str(error))

    def _resume(self) -> None:
        if self._lost:
            self._lost = 0
            self._report(None)


def tail(path: Path, lines: int) -> str:
    """Return the last lines of a log file, or an empty text if the file does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - lines * 400))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
