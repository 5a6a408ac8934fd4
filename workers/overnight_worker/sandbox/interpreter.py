"""Which Python runs process 1 of a sandbox.

A worker's own Python may be below a home directory that the user of the sandbox cannot read. So
with bubblewrap, where process 1 is started inside, the system's Python is preferred: it is in /usr,
which every sandbox has. Otherwise the directory of the worker's own Python is mounted.
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from overnight_worker.sandbox.sandbox_user import unprivileged_user
from overnight_worker.sandbox.spec import NoSandbox

SYSTEM_PYTHONS: Final = ("/usr/bin/python3", "/usr/local/bin/python3")
ISOLATED: Final = ("-I", "-S")
# Says whether a Python can run process 1: old enough versions miss functions that it calls.
CHECK: Final = (
    "import sys, select, resource, _signal; from _ctypes import call_function;"
    " sys.exit(sys.version_info < (3, 9))"
)
CHECK_SECONDS: Final = 30


class Interpreter(NamedTuple):
    """A Python; `prefix` is the directory to mount for it, None if it is in /usr."""

    path: str
    prefix: str | None = None


def candidates() -> tuple[Interpreter, ...]:
    """Return the Pythons that could run process 1 inside, the best first."""
    own = Path(sys.executable).resolve()
    system = tuple(Interpreter(path) for path in SYSTEM_PYTHONS)
    return (*system, Interpreter(str(own), str(Path(sys.base_prefix).resolve())))


@cache
def inside_interpreter() -> Interpreter:
    """Return the first Python that the user of a sandbox can run; raise NoSandbox without one."""
    user = unprivileged_user() if os.geteuid() == 0 else None
    for interpreter in candidates():
        if _works(interpreter.path, user):
            return interpreter
    raise NoSandbox(
        f"the user of a sandbox can run no Python ({sys.executable} is not readable by it)",
        "install the system's python3 (apt install python3), or install the worker's Python"
        " outside of home directories, for example in /opt",
    )


def outside_interpreter() -> str:
    """Return the Python that makes a sandbox by system calls: the worker's own if it can be run."""
    for path in (sys.executable, *SYSTEM_PYTHONS):
        if os.access(path, os.X_OK):
            return path
    return sys.executable


def _works(path: str, user: int | None) -> bool:
    try:
        check = subprocess.run(
            [path, *ISOLATED, "-c", CHECK],
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHECK_SECONDS,
            check=False,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return check.returncode == 0
