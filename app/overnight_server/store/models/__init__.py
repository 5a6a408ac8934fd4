"""The tables, as typed models.

A *user* has plan columns; beside each user runs one narrow *lane* that counts what the gate
must know (active, ready, hours) and is locked before anything about that user's tasks changes.
A *task* belongs to a *dag* (a lone task to a dag of one) and may wait on others through
*task_edges*. While it is active it stands in *held_locks* with every key it locks; who had to
wait for one is remembered in *lock_waits*. Each claim of a task opens an *attempt*, keyed by the
task's epoch; each attempt that ran leaves rows in the *usage_ledger*, an append-only record in
seconds per billing month, and what it cost in *spending*, per night. What a user should hear of
once, such as hours running out, stands in *notices*. Every change of state leaves an *event*, and
every change of what may be done (users, keys, pauses, budgets) a line in the *audit_log*.
Tasks that failed for good stand in *dead_letters*; answers from holders that had lost their claim
in *stale_results*; what runs made for others to read, besides their outputs, in *artifacts*. Tasks
that programs left in their own transactions stand in the *inbox* until intake has taken them. What
is to be done to many tasks at once, and how far it has got, stands in *bulk_operations*.
*agents* are the workers that can be reached, gathered in *pools*; *pauses* say who stopped what
from starting; *paces* say how long each type of task takes of late; *sweeps* remember when each
maintenance sweep last ran; *source_jobs* what became of the latest submit of a scheduler's job.

Counters on lanes and dags, and all events, are written by triggers in the very statement that
changes a task, so no code can forget them. Instants come from the database function `clock()`.
"""

from overnight_server.store.models.base import Base
from overnight_server.store.models.bulk import BulkOperation
from overnight_server.store.models.inbox import InboxRow
from overnight_server.store.models.locks import HeldLock, LockWait
from overnight_server.store.models.operations import (
    Agent,
    LegalMove,
    Pace,
    Pause,
    Pool,
    SourceJob,
    SweepRun,
)
from overnight_server.store.models.records import (
    Artifact,
    Attempt,
    AuditEntry,
    DeadLetter,
    LedgerEntry,
    Notice,
    Spending,
    StaleResult,
    TaskEvent,
)
from overnight_server.store.models.tasks import Dag, DagTrigger, Task, TaskEdge
from overnight_server.store.models.users import ApiKey, Lane, User

__all__ = [
    "Agent",
    "ApiKey",
    "Artifact",
    "Attempt",
    "AuditEntry",
    "Base",
    "BulkOperation",
    "Dag",
    "DagTrigger",
    "DeadLetter",
    "HeldLock",
    "InboxRow",
    "Lane",
    "LedgerEntry",
    "LegalMove",
    "LockWait",
    "Notice",
    "Pace",
    "Pause",
    "Pool",
    "SourceJob",
    "Spending",
    "StaleResult",
    "SweepRun",
    "Task",
    "TaskEdge",
    "TaskEvent",
    "User",
]
