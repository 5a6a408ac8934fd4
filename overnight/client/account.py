"""Looking after one's tasks: dead letters, locks, usage, approvals, triggers, pauses."""

import builtins
from collections.abc import Mapping
from typing import Any

from overnight.client.account_calls import asked, path, read, read_list, read_page, send
from overnight.client.operations import D, Group, operation, series
from overnight.client.pagination import paged
from overnight.client.scripts import Series
from overnight.client.task_calls import Call, Page
from overnight.models.account import (
    Approval,
    ApprovalRequest,
    ApprovalResult,
    DeadLetter,
    DeadLetterGroup,
    LedgerLine,
    Lock,
    LockWait,
    Me,
    Notice,
    Pause,
    PauseRequest,
    PauseState,
    ResolveRequest,
    ResolveResult,
    Trigger,
    TriggerCreate,
    TriggerDeleted,
    Usage,
    WindowRequest,
)
from overnight.models.dags import DagCreate
from overnight.models.tasks import CancelResult


class DeadLetters(Group[D]):
    """Tasks that failed for good; reached as `client.dead_letters`."""

    @series
    def list(
        self,
        *,
        resolved: bool = False,
        fingerprint: str | None = None,
        limit: int | None = None,
    ) -> Series[DeadLetter]:
        """Yield your dead letters, the latest first; those of one group if it is named."""

        def ask(size: int, cursor: str | None) -> Call[Page[DeadLetter]]:
            return read_page(
                DeadLetter,
                path("dead-letters"),
                resolved="true" if resolved else None,
                fingerprint=fingerprint,
                limit=size,
                before=cursor,
            )

        yield from paged(ask, limit)

    @operation
    def groups(self) -> Call[builtins.list[DeadLetterGroup]]:
        """Return the ways in which your tasks fail for good, the most frequent first."""
        return read_list(DeadLetterGroup, path("dead-letters", "groups"))

    @operation
    def get(self, task_id: str) -> Call[DeadLetter]:
        """Return a task's latest dead letter."""
        return read(DeadLetter, path("dead-letters", task_id))

    @operation
    def retry(self, task_id: str, *, note: str = "", attempts: int = 3) -> Call[ResolveResult]:
        """Run a dead task again, with so many more tries."""
        return _resolve(task_id, {"resolution": "retry", "note": note, "attempts": attempts})

    @operation
    def cancel(self, task_id: str, *, note: str = "") -> Call[ResolveResult]:
        """Let a dead task rest."""
        return _resolve(task_id, {"resolution": "cancel", "note": note})

    @operation
    def modify_and_retry(
        self, task_id: str, changes: Mapping[str, Any], *, note: str = "", attempts: int = 3
    ) -> Call[ResolveResult]:
        """Change a dead task, payload and spec included, and run it again."""
        fields = {"note": note, "attempts": attempts, "changes": dict(changes)}
        return _resolve(task_id, {"resolution": "modify_and_retry", **fields})


class Locks(Group[D]):
    """What your running tasks hold alone; reached as `client.locks`."""

    @operation
    def list(self) -> Call[list[Lock]]:
        """Return the locks that your tasks hold, and who waits for them."""
        return read_list(Lock, path("locks"))

    @operation
    def waits(self, *, limit: int = 50) -> Call[builtins.list[LockWait]]:
        """Return the latest times that a task of yours had to wait for a lock."""
        return read_list(LockWait, path("locks", "waits"), limit=limit)


class Spending(Group[D]):
    """Hours, money, and tasks that ask for more; reached as `client.usage`."""

    @operation
    def get(self) -> Call[Usage]:
        """Return the hours of this month and the money of this night."""
        return read(Usage, path("usage"))

    @series
    def ledger(self, *, limit: int | None = None) -> Series[LedgerLine]:
        """Yield what was charged to this month and given back, the latest first."""

        def ask(size: int, cursor: str | None) -> Call[Page[LedgerLine]]:
            return read_page(LedgerLine, path("usage", "ledger"), limit=size, before=cursor)

        yield from paged(ask, limit)

    @operation
    def approvals(self) -> Call[list[Approval]]:
        """Return your tasks that have used up a budget and ask for more."""
        return read_list(Approval, path("approvals"))

    @operation
    def approve(self, task_id: str, usd: float) -> Call[ApprovalResult]:
        """Allow a task that asks so much more, and let it go on."""
        body = asked(ApprovalRequest, {"usd": usd})
        return send(ApprovalResult, "POST", path("approvals", task_id, "approve"), body)

    @operation
    def stop(self, task_id: str) -> Call[CancelResult]:
        """End a task that asks for more money."""
        return send(CancelResult, "POST", path("approvals", task_id, "stop"))


class Triggers(Group[D]):
    """Graphs that others set off; reached as `client.triggers`."""

    @operation
    def list(self, *, dag_id: str | None = None, limit: int = 50) -> Call[list[Trigger]]:
        """Return what the ends of your graphs set off, the newest first."""
        return read_list(Trigger, path("triggers"), dag_id=dag_id, limit=limit)

    @operation
    def get(self, trigger_id: str) -> Call[Trigger]:
        """Return one trigger."""
        return read(Trigger, path("triggers", trigger_id))

    @operation
    def create(
        self, dag_id: str, graph: DagCreate | Mapping[str, Any], *, when: str = "completed"
    ) -> Call[Trigger]:
        """Have a graph let in once another has completed, failed, or finished in any way."""
        whole = graph if isinstance(graph, DagCreate) else asked(DagCreate, graph)
        body = asked(TriggerCreate, {"when": when, "graph": whole})
        return send(Trigger, "POST", path("dags", dag_id, "triggers"), body)

    @operation
    def drop(self, trigger_id: str) -> Call[TriggerDeleted]:
        """Take a trigger back that has not fired."""
        return send(TriggerDeleted, "DELETE", path("triggers", trigger_id))


class Account(Group[D]):
    """You: who you are here, what holds your work, what you should know; as `client.me`."""

    @operation
    def get(self) -> Call[Me]:
        """Return who you are here."""
        return read(Me, path("users", "me"))

    @operation
    def pause(self, *, note: str = "") -> Call[PauseState]:
        """Let nothing new of yours start; what runs goes on."""
        return send(
            PauseState, "POST", path("users", "me", "pause"), asked(PauseRequest, {"note": note})
        )

    @operation
    def resume(self) -> Call[PauseState]:
        """Let your work start again."""
        return send(PauseState, "POST", path("users", "me", "resume"))

    @operation
    def set_window(
        self, zone: str, opens: str, closes: str, *, at_closing: str = "finish"
    ) -> Call[Me]:
        """Let your work start only from one wall-clock time to another, such as 22:00 to 06:00."""
        said = {"zone": zone, "opens": opens, "closes": closes, "at_closing": at_closing}
        return send(Me, "PUT", path("users", "me", "window"), asked(WindowRequest, said))

    @operation
    def drop_window(self) -> Call[Me]:
        """Let your work start at any time."""
        return send(Me, "DELETE", path("users", "me", "window"))

    @operation
    def pauses(self) -> Call[list[Pause]]:
        """Return the pauses that keep your work waiting."""
        return read_list(Pause, path("pauses"))

    @series
    def notices(self, *, limit: int | None = None) -> Series[Notice]:
        """Yield what you should hear of, the latest first."""

        def ask(size: int, cursor: str | None) -> Call[Page[Notice]]:
            return read_page(Notice, path("notices"), limit=size, before=cursor)

        yield from paged(ask, limit)


def _resolve(task_id: str, fields: Mapping[str, Any]) -> Call[ResolveResult]:
    body = asked(ResolveRequest, fields)
    return send(ResolveResult, "POST", path("dead-letters", task_id, "resolve"), body)
