"""Which sandboxes can be made on this machine: found out by making one of each kind."""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from overnight_worker.sandbox.bubblewrap import MIN_VERSION, PROGRAM
from overnight_worker.sandbox.remedies import INSTALL
from overnight_worker.sandbox.spec import (
    SANDBOXES,
    NoSandbox,
    SandboxKind,
    SandboxLimits,
    SandboxSpec,
)
from overnight_worker.sandbox.start import start_sandbox
from overnight_worker.sandbox.workspace import create_workspace, remove_workspace

Policy = Literal["strict", "permissive"]
PROBE_SECONDS: Final = 30.0
# A probe ends by itself within milliseconds.
PROBE_LIMITS: Final = SandboxLimits(memory_mb=256, processes=32, workspace_mb=16, tmp_mb=16)


@dataclass(frozen=True)
class SandboxProbe:
    """Whether one kind of sandbox works here; if not, why, and what an operator can do.

    `memory` says who holds the memory limit: the kernel by a `cgroup`, or process 1 by what it has
    `measured`.
    """

    kind: SandboxKind
    usable: bool
    reason: str = ""
    remedy: str = ""
    memory: str = ""


def probe_all_kinds() -> list[SandboxProbe]:
    """Make a sandbox of each kind, and return what happened, the preferred kind first."""
    return [_probe(kind) for kind in SANDBOXES]


@cache
def probe_until_usable() -> tuple[SandboxProbe, ...]:
    """Probe this machine up to the first kind that works; remembered for this process.

    Processes that are forked later remember it too.
    """
    probes: list[SandboxProbe] = []
    for kind in SANDBOXES:
        probes.append(_probe(kind))
        if probes[-1].usable:
            break
    return tuple(probes)


def choose_sandbox_kind(policy: Policy = "strict") -> SandboxKind:
    """Return the kind of sandbox to use on this machine.

    If none can be made, raise NoSandbox with the remedies (`strict`), or return `SandboxKind.NONE`
    (`permissive`), with which commands run without a sandbox.
    """
    probes = probe_until_usable()
    if probes[-1].usable:
        return probes[-1].kind
    if policy == "permissive":
        return SandboxKind.NONE
    raise NoSandbox(*explain(probes))


def explain(probes: tuple[SandboxProbe, ...]) -> tuple[str, str]:
    """Return why none of the probes made a sandbox, and what an operator can do."""
    reasons = "; ".join(f"{probe.kind}: {probe.reason}" for probe in probes)
    return reasons, "; or ".join(dict.fromkeys(probe.remedy for probe in probes))


def _probe(kind: SandboxKind) -> SandboxProbe:
    if sys.platform != "linux":
        remedy = "run workers that execute commands on Linux"
        return SandboxProbe(kind, usable=False, reason="sandboxes need Linux", remedy=remedy)
    try:
        if kind is SandboxKind.BUBBLEWRAP:
            _check_version()
        return _try(kind)
    except NoSandbox as error:
        return SandboxProbe(kind, usable=False, reason=str(error), remedy=error.remedy)
    except OSError as error:
        remedy = f"let the worker write to {tempfile.gettempdir()}, or set TMPDIR"
        return SandboxProbe(kind, usable=False, reason=f"no trial: {error}", remedy=remedy)


def _check_version() -> None:
    """Raise NoSandbox if bubblewrap is missing or too old."""
    wanted = ".".join(map(str, MIN_VERSION))
    try:
        answer = subprocess.run(
            [PROGRAM, "--version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=PROBE_SECONDS,
        )
        version = answer.stdout.split()[-1]
    except (OSError, subprocess.SubprocessError, IndexError):
        raise NoSandbox("bubblewrap is not installed", INSTALL) from None
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
        raise NoSandbox(f"bubblewrap is version {version}, older than {wanted}", INSTALL)


def _try(kind: SandboxKind) -> SandboxProbe:
    with tempfile.TemporaryDirectory(prefix="overnight-probe-") as parent:
        Path(parent).chmod(0o711)
        workspace = create_workspace(Path(parent))
        try:
            spec = SandboxSpec(argv=("true",), workspace=workspace, limits=PROBE_LIMITS)
            with start_sandbox(spec, kind) as sandbox:
                memory = "cgroup" if sandbox.is_memory_enforced else "measured"
                end = sandbox.wait(PROBE_SECONDS)
        finally:
            remove_workspace(workspace)
    if end is None or end.cause != "exit":
        detail = "it did not end" if end is None else end.detail or end.cause
        raise NoSandbox(f"a trial command failed: {detail}", "see the message")
    return SandboxProbe(kind, usable=True, memory=memory)
