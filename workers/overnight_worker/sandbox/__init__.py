"""Runs one command that is trusted with nothing.

`SandboxSpec` says what to run, `choose_sandbox_kind` how a sandbox can be made on this machine, and
`start_sandbox` starts it. `create_workspace` and `remove_workspace` care for the directory that the
command works in, `FileCollector` reads what it left. The package knows nothing of tasks, Postgres
or Celery.
"""

from overnight_worker.sandbox.file_collector import CollectedFile, FileCollector, FileTooLarge
from overnight_worker.sandbox.handle import Sandbox
from overnight_worker.sandbox.probe import SandboxProbe, choose_sandbox_kind, probe_all_kinds
from overnight_worker.sandbox.proxy import Report
from overnight_worker.sandbox.spec import (
    EVENTS_FD,
    EVENTS_VARIABLE,
    NetworkPolicy,
    NoSandbox,
    ReadOnlyMount,
    SandboxEnd,
    SandboxKind,
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
    "Report",
    "Sandbox",
    "SandboxEnd",
    "SandboxKind",
    "SandboxLimits",
    "SandboxProbe",
    "SandboxSpec",
    "choose_sandbox_kind",
    "create_workspace",
    "probe_all_kinds",
    "remove_workspace",
    "start_sandbox",
]
