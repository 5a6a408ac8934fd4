"""The arguments that make a sandbox with bubblewrap."""

from collections.abc import Mapping

from overnight_worker.sandbox.root_layout import INSIDE_ID, RootLayout
from overnight_worker.sandbox.spec import WORKSPACE

PROGRAM = "bwrap"
# The first version that knows every option used here.
MIN_VERSION = (0, 8)


def bubblewrap_arguments(
    layout: RootLayout, *, workspace: str, seccomp: int, files: Mapping[str, int]
) -> list[str]:
    """Return the options of bubblewrap, in the order in which it applies them.

    `seccomp` is the descriptor of the filter, `files` has a descriptor for each file of the layout.
    """
    return [
        *_isolation(),
        *_contents(layout, files),
        *("--bind", workspace, WORKSPACE),
        *_read_only("/proc", "/dev", "/"),
        *("--chdir", WORKSPACE),
        *("--seccomp", str(seccomp)),
    ]


def _isolation() -> list[str]:
    return [
        "--unshare-user",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--unshare-net",
        *("--uid", str(INSIDE_ID)),
        *("--gid", str(INSIDE_ID)),
        "--disable-userns",
        *("--hostname", "sandbox"),
        # A second way to end with the worker; the first is the channel of process 1.
        "--die-with-parent",
        "--new-session",
        "--as-pid-1",
        *("--cap-drop", "ALL"),
    ]


def _contents(layout: RootLayout, files: Mapping[str, int]) -> list[str]:
    arguments = []
    for bind in layout.binds:
        arguments += ["--ro-bind", *bind]
    for link in layout.links:
        arguments += ["--symlink", *link]
    for path in layout.files:
        arguments += ["--ro-bind-data", str(files[path]), path]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for memory in layout.memories:
        arguments += ["--size", str(memory.size), "--perms", "1777", "--tmpfs", memory.target]
    return arguments


def _read_only(*targets: str) -> list[str]:
    """Return options for what bubblewrap itself has mounted, which is writable until here."""
    return [word for target in targets for word in ("--remount-ro", target)]
