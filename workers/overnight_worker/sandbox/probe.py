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
    Rung,
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
class RungProbe:
    """Whether one kind of sandbox works here; if not, why, and what an operator can do.

    `memory` says who holds the memory limit: the kernel by a `cgroup`, or process 1 by a `watch`.
    """

    rung: Rung
    usable: bool
    reason: str = ""
    remedy: str = ""
    memory: str = ""


def usable_rungs() -> list[RungProbe]:
    """Make a sandbox of each kind, and return what happened, the preferred kind first."""
    return [_probe(rung) for rung in SANDBOXES]


@cache
def find_rung() -> tuple[RungProbe, ...]:
    """Probe this machine up to the first kind that works; remembered for this process.

    Processes that are forked later remember it too.
    """
    probes: list[RungProbe] = []
    for rung in SANDBOXES:
        probes.append(_probe(rung))
        if probes[-1].usable:
            break
    return tuple(probes)


def choose_rung(policy: Policy = "strict") -> Rung:
    """Return the kind of sandbox to use on this machine.

    If none can be made, raise NoSandbox with the remedies (`strict`), or return `Rung.NONE`
    (`permissive`), with which commands run without a sandbox.
    """
    probes = find_rung()
    if probes[-1].usable:
        return probes[-1].rung
    if policy == "permissive":
        return Rung.NONE
    raise NoSandbox(*explain(probes))


def explain(probes: tuple[RungProbe, ...]) -> tuple[str, str]:
    """Return why none of the probes made a sandbox, and what an operator can do."""
    reasons = "; ".join(f"{probe.rung}: {probe.reason}" for probe in probes)
    return reasons, "; or ".join(dict.fromkeys(probe.remedy for probe in probes))


def _probe(rung: Rung) -> RungProbe:
    if sys.platform != "linux":
        remedy = "run workers that execute commands on Linux"
        return RungProbe(rung, usable=False, reason="sandboxes need Linux", remedy=remedy)
    try:
        if rung is Rung.BUBBLEWRAP:
            _check_version()
        return _try(rung)
    except NoSandbox as error:
        return RungProbe(rung, usable=False, reason=str(error), remedy=error.remedy)
    except OSError as error:
        remedy = f"let the worker write to {tempfile.gettempdir()}, or set TMPDIR"
        return RungProbe(rung, usable=False, reason=f"no trial: {error}", remedy=remedy)


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


def _try(rung: Rung) -> RungProbe:
    with tempfile.TemporaryDirectory(prefix="overnight-probe-") as parent:
        Path(parent).chmod(0o711)
        workspace = create_workspace(Path(parent))
        try:
            spec = SandboxSpec(argv=("true",), workspace=workspace, limits=PROBE_LIMITS)
            with start_sandbox(spec, rung) as sandbox:
                memory = "cgroup" if sandbox.is_memory_enforced else "watch"
                end = sandbox.wait(PROBE_SECONDS)
        finally:
            remove_workspace(workspace)
    if end is None or end.cause != "exit":
        detail = "it did not end" if end is None else end.detail or end.cause
        raise NoSandbox(f"a trial command failed: {detail}", "see the message")
    return RungProbe(rung, usable=True, memory=memory)
