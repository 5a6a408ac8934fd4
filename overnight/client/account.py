"""Operations on a user's dead letters, locks, usage, approvals, triggers, pauses and notices."""

import builtins
from collections.abc import Mapping
from typing import Any

from overnight.client.calls import Call, Page, path, read, read_list, read_page, send
from overnight.client.operations import D, Group, iteration, operation
from overnight.client.request_plan import ItemSteps, paginate
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
    UsageBreakdown,
    WindowRequest,
)
from overnight.models.dags import DagCreate
from overnight.models.field_errors import validate
from overnight.models.keys import SignInLink
from overnight.models.tasks import CancelResult


class DeadLetters(Group[D]):
    """Tasks that failed permanently; available as `client.dead_letters`."""

    @iteration
    def list(
        self,
        *,
        resolved: bool = False,
        fingerprint: str | None = None,
        limit: int | None = None,
    ) -> ItemSteps[DeadLetter]:
        """Yield your dead letters, latest first; with a fingerprint, only those of that group."""

        def get_page(size: int, cursor: str | None) -> Call[Page[DeadLetter]]:
            return read_page(
                DeadLetter,
                path("dead-letters"),
                resolved="true" if resolved else None,
                fingerprint=fingerprint,
                limit=size,
                before=cursor,
            )

        yield from paginate(get_page, limit)

    @operation
    def groups(self) -> Call[builtins.list[DeadLetterGroup]]:
        """Return your dead letters grouped by kind of failure, the largest group first."""
        return read_list(DeadLetterGroup, path("dead-letters", "groups"))

    @operation
    def get(self, task_id: str) -> Call[DeadLetter]:
        """Return the latest dead letter of a task."""
        return read(DeadLetter, path("dead-letters", task_id))

    @operation
    def retry(self, task_id: str, *, note: str = "", attempts: int = 3) -> Call[ResolveResult]:
        """Run a dead-lettered task again, with `attempts` further attempts."""
        return _resolve(task_id, {"resolution": "retry", "note": note, "attempts": attempts})

    @operation
    def cancel(self, task_id: str, *, note: str = "") -> Call[ResolveResult]:
        """Mark a dead letter as resolved without another run."""
        return _resolve(task_id, {"resolution": "cancel", "note": note})

    @operation
    def modify_and_retry(
        self, task_id: str, changes: Mapping[str, Any], *, note: str = "", attempts: int = 3
    ) -> Call[ResolveResult]:
        """Change a dead-lettered task (payload and spec included) and run it again."""
        fields = {"note": note, "attempts": attempts, "changes": dict(changes)}
        return _resolve(task_id, {"resolution": "modify_and_retry", **fields})


class Locks(Group[D]):
    """Locks that your running tasks hold; available as `client.locks`."""

    @operation
    def list(self) -> Call[list[Lock]]:
        """Return the locks that your tasks hold, with the tasks that wait for them."""
        return read_list(Lock, path("locks"))

    @operation
    def waits(self, *, limit: int = 50) -> Call[builtins.list[LockWait]]:
        """Return the latest waits of your tasks for a lock."""
        return read_list(LockWait, path("locks", "waits"), limit=limit)


class UsageAndApprovals(Group[D]):
    """Hours, money, and tasks that wait for a larger budget; available as `client.usage`."""

    @operation
    def get(self) -> Call[Usage]:
        """Return the hours of this billing month and the money of this night."""
        return read(Usage, path("usage"))

    @operation
    def breakdown(self) -> Call[UsageBreakdown]:
        """Return the hours of this billing month by day and by type of task."""
        return read(UsageBreakdown, path("usage", "breakdown"))

    @iteration
    def ledger(self, *, limit: int | None = None) -> ItemSteps[LedgerLine]:
        """Yield the charges and refunds of this billing month, latest first."""

        def get_page(size: int, cursor: str | None) -> Call[Page[LedgerLine]]:
            return read_page(LedgerLine, path("usage", "ledger"), limit=size, before=cursor)

        yield from paginate(get_page, limit)

    @operation
    def approvals(self, *, limit: int | None = None) -> Call[list[Approval]]:
        """Return your tasks that have used up a budget and wait for an approval."""
        return read_list(Approval, path("approvals"), limit=limit)

    @operation
    def approve(self, task_id: str, usd: float) -> Call[ApprovalResult]:
        """Raise the used-up budget by `usd` US dollars, and let its tasks continue."""
        body = validate(ApprovalRequest, {"usd": usd})
        return send(ApprovalResult, "POST", path("approvals", task_id, "approve"), body)

    @operation
    def stop(self, task_id: str) -> Call[CancelResult]:
        """Cancel a task that waits for an approval."""
        return send(CancelResult, "POST", path("approvals", task_id, "stop"))


class Triggers(Group[D]):
    """Graphs that are created when another graph ends; available as `client.triggers`."""

    @operation
    def list(self, *, dag_id: str | None = None, limit: int = 50) -> Call[list[Trigger]]:
        """Return your triggers, newest first; with a graph's id, only those of that graph."""
        return read_list(Trigger, path("triggers"), dag_id=dag_id, limit=limit)

    @operation
    def get(self, trigger_id: str) -> Call[Trigger]:
        """Return one trigger."""
        return read(Trigger, path("triggers", trigger_id))

    @operation
    def create(
        self, dag_id: str, graph: DagCreate | Mapping[str, Any], *, when: str = "completed"
    ) -> Call[Trigger]:
        """Create a graph when another has completed, failed, or finished (either of the two)."""
        new_graph = graph if isinstance(graph, DagCreate) else validate(DagCreate, graph)
        body = validate(TriggerCreate, {"when": when, "graph": new_graph})
        return send(Trigger, "POST", path("dags", dag_id, "triggers"), body)

    @operation
    def drop(self, trigger_id: str) -> Call[TriggerDeleted]:
        """Delete a trigger that has not fired."""
        return send(TriggerDeleted, "DELETE", path("triggers", trigger_id))


class Account(Group[D]):
    """Your own account: user, pause, time window, notices; available as `client.me`."""

    @operation
    def get(self) -> Call[Me]:
        """Return the user whose key is used."""
        return read(Me, path("users", "me"))

    @operation
    def pause(self, *, note: str = "") -> Call[PauseState]:
        """Start no further tasks of yours; running tasks continue."""
        body = validate(PauseRequest, {"note": note})
        return send(PauseState, "POST", path("users", "me", "pause"), body)

    @operation
    def resume(self) -> Call[PauseState]:
        """Start your tasks again."""
        return send(PauseState, "POST", path("users", "me", "resume"))

    @operation
    def set_window(
        self, zone: str, opens: str, closes: str, *, at_closing: str = "finish"
    ) -> Call[Me]:
        """Start your tasks only between two times of day, such as 22:00 and 06:00."""
        window = {"zone": zone, "opens": opens, "closes": closes, "at_closing": at_closing}
        body = validate(WindowRequest, window)
        return send(Me, "PUT", path("users", "me", "window"), body)

    @operation
    def drop_window(self) -> Call[Me]:
        """Remove the time window, so that your tasks may start at any time."""
        return send(Me, "DELETE", path("users", "me", "window"))

    @operation
    def make_sign_in_link(self) -> Call[SignInLink]:
        """Return a link that signs a browser in to the dashboard, once, with the key's rights."""
        return send(SignInLink, "POST", path("users", "me", "sign-in-links"))

    @operation
    def pauses(self) -> Call[list[Pause]]:
        """Return the pauses that keep your tasks from starting."""
        return read_list(Pause, path("pauses"))

    @iteration
    def notices(self, *, limit: int | None = None) -> ItemSteps[Notice]:
        """Yield your notices, latest first."""

        def get_page(size: int, cursor: str | None) -> Call[Page[Notice]]:
            return read_page(Notice, path("notices"), limit=size, before=cursor)

        yield from paginate(get_page, limit)


def _resolve(task_id: str, fields: Mapping[str, Any]) -> Call[ResolveResult]:
    body = validate(ResolveRequest, fields)
    return send(ResolveResult, "POST", path("dead-letters", task_id, "resolve"), body)
