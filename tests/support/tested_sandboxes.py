"""Which sandboxes the tests can make on this machine, and what they must leave out."""

import os
import shutil

from overnight_worker.sandbox.spec import SANDBOXES, SandboxKind

ROOT = os.geteuid() == 0
SANDBOX_KINDS = [
    sandbox_kind
    for sandbox_kind in SANDBOXES
    if sandbox_kind is SandboxKind.OWN or shutil.which("bwrap")
]


def left_out() -> list[str]:
    """Return what this machine cannot test, because nothing is left out in silence."""
    lines = []
    if SandboxKind.BUBBLEWRAP not in SANDBOX_KINDS:
        lines.append("sandbox: bubblewrap is not installed, so only the kind `own` is tested")
    if not ROOT:
        lines.append("sandbox: the tests do not run as root, so only the user worker is tested")
    return lines
