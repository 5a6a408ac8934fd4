"""What an operator can do about a sandbox that cannot be made."""

from pathlib import Path
from typing import Final, NamedTuple


class Remedy(NamedTuple):
    """A cause: words of its error message, and what to do."""

    words: tuple[str, ...]
    text: str


APPARMOR: Final = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
DEBIAN: Final = Path("/proc/sys/kernel/unprivileged_userns_clone")
COUNT: Final = Path("/proc/sys/user/max_user_namespaces")
# Settings of the kernel that forbid user namespaces: their value then, and what to do.
KERNEL_SETTINGS: Final = {
    APPARMOR: (
        "1",
        (
            "AppArmor forbids user namespaces of ordinary users: give bwrap a profile with"
            " `userns,` in /etc/apparmor.d, or set"
            " kernel.apparmor_restrict_unprivileged_userns=0"
        ),
    ),
    DEBIAN: (
        "0",
        (
            "the kernel forbids user namespaces of ordinary users: set"
            " kernel.unprivileged_userns_clone=1"
        ),
    ),
    COUNT: ("0", "the kernel allows no user namespace: set user.max_user_namespaces=15000"),
}
MASKED_PROC: Final = (
    "the container hides parts of /proc: start it with --security-opt systempaths=unconfined"
    " (Kubernetes: procMount: Unmasked)"
)
CONTAINER: Final = (
    "the container's seccomp profile forbids namespaces: start it with --security-opt"
    " seccomp=unconfined, or with a profile that allows unshare, clone, mount and pivot_root"
)
INSTALL: Final = "install bubblewrap 0.8 or later (apt install bubblewrap, dnf install bubblewrap)"
OLD_KERNEL: Final = "use Linux 5.12 or later"
UNREADABLE: Final = (
    "the user of the sandbox cannot reach this path: put it below directories that all users may"
    " enter (chmod o+x), not below a home directory"
)
REMEDIES: Final = (
    Remedy(("no such file or directory: 'bwrap'", "unknown option"), INSTALL),
    Remedy(("mount /proc", "mount proc"), MASKED_PROC),
    Remedy(("can't find source path", "no such file or directory", "'.'"), UNREADABLE),
    Remedy(("function not implemented", "set attributes of"), OLD_KERNEL),
    Remedy(("not permitted", "permission denied", "no permissions"), CONTAINER),
)
# Words of messages that a setting of the kernel may have caused.
FORBIDDEN: Final = ("permi", "rtm_newaddr", "no space left", "enospc")
UNKNOWN: Final = "see the message, and try the same as the worker's user with `overnight doctor`"


def remedy_for(message: str) -> str:
    """Return what to do about an error message of a start."""
    if any(word in message.lower() for word in FORBIDDEN) and (setting := kernel_remedy()):
        return setting
    for remedy in REMEDIES:
        if any(word in message.lower() for word in remedy.words):
            return remedy.text
    return UNKNOWN


def kernel_remedy() -> str | None:
    """Return what to do about a setting of the kernel that forbids namespaces, None without one."""
    for path, (forbidding, text) in KERNEL_SETTINGS.items():
        try:
            value = path.read_text().strip()
        except OSError:
            continue
        if value == forbidding:
            return text
    return None
