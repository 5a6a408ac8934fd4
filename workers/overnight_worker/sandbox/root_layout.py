"""The file system of a sandbox: what is mounted where, in the order of the mounts.

The root is a list of what a command needs, never the host's own root: a directory that is mounted,
even read-only, lets a command connect to every Unix socket in it (Postgres, Docker, D-Bus).
"""

from pathlib import Path
from typing import Final, NamedTuple

from overnight_worker.sandbox.spec import MEGABYTE, SandboxSpec

# Links into /usr on most systems, directories of their own on others.
SYSTEM_DIRECTORIES: Final = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
# The files of /etc that libraries need: where libraries are, which certificates are trusted, links
# of `update-alternatives`, the time zone.
SYSTEM_FILES: Final = (
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/alternatives",
    "/etc/localtime",
)
# The user of a command, whatever its user is outside. Some programs fail without a name.
INSIDE_ID: Final = 65534
WRITTEN_FILES: Final = {
    "/etc/passwd": f"agent:x:{INSIDE_ID}:{INSIDE_ID}:agent:/tmp:/bin/sh\n",
    "/etc/group": f"agent:x:{INSIDE_ID}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - the sandbox's own
TEMPORARY: Final = "/tmp"  # noqa: S108 - the same


class Bind(NamedTuple):
    """A file or directory of the host, read-only."""

    source: str
    target: str


class Link(NamedTuple):
    """A symbolic link."""

    destination: str
    target: str


class Memory(NamedTuple):
    """An empty file system in memory, of limited size."""

    target: str
    size: int


class RootLayout(NamedTuple):
    """Everything that the root of a sandbox holds besides /proc, /dev and the workspace."""

    binds: tuple[Bind, ...]
    links: tuple[Link, ...]
    files: dict[str, str]
    memories: tuple[Memory, ...]


def root_layout(spec: SandboxSpec, interpreter_prefix: str | None = None) -> RootLayout:
    """Return the layout for a specification.

    `interpreter_prefix` is the directory of the Python that runs process 1, if it is outside /usr.
    """
    roots = {name: Path("/", name) for name in SYSTEM_DIRECTORIES}
    paths = [
        "/usr",
        *(str(path) for path in roots.values() if path.is_dir() and not path.is_symlink()),
    ]
    paths += [path for path in SYSTEM_FILES if Path(path).exists()]
    paths += [interpreter_prefix] if interpreter_prefix else []
    own = (Bind(path, path) for path in paths)
    requested_binds = (Bind(str(mount.source), mount.target) for mount in spec.read_only_mounts)
    size = spec.limits.tmp_mb * MEGABYTE
    return RootLayout(
        # The source is the real path: what a link on the host means inside would be another file.
        binds=tuple(
            Bind(str(Path(bind.source).resolve()), bind.target) for bind in (*own, *requested_binds)
        ),
        links=tuple(
            Link(str(path.readlink()), str(path)) for path in roots.values() if path.is_symlink()
        ),
        files=WRITTEN_FILES,
        memories=(Memory(SHARED_MEMORY, size), Memory(TEMPORARY, size)),
    )
