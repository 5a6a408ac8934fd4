"""Runs one command that is trusted with nothing.

`SandboxSpec` says what to run, `choose_rung` how a sandbox can be made on this machine, and
`start_sandbox` starts it. `create_workspace` and `remove_workspace` care for the directory that the
command works in, `FileCollector` reads what it left. The package knows nothing of tasks, Postgres
or Celery.
"""

from overnight_worker.sandbox.collect import CollectedFile, FileCollector, FileTooLarge
from overnight_worker.sandbox.handle import Sandbox
from overnight_worker.sandbox.probe import RungProbe, choose_rung, usable_rungs
from overnight_worker.sandbox.spec import (
    EVENTS_FD,
    EVENTS_VARIABLE,
    NetworkPolicy,
    NoSandbox,
    ReadOnlyMount,
    Rung,
    SandboxEnd,
    SandboxLimits,
    SandboxSpec,
)
from overnight_worker.sandbox.start import start_sandbox
from overnight_worker.sandbox.workspace import create_workspace, remove_workspace

__all__ = [
    "EVENTS_FD",
    "EVENTS_VARIABLE",
    "CollectedFile",
    "FileCollector",
    "FileTooLarge",
    "NetworkPolicy",
    "NoSandbox",
    "ReadOnlyMount",
    "Rung",
    "RungProbe",
    "Sandbox",
    "SandboxEnd",
    "SandboxLimits",
    "SandboxSpec",
    "choose_rung",
    "create_workspace",
    "remove_workspace",
    "start_sandbox",
    "usable_rungs",
]
