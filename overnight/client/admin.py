"""Operations for admins on users, workers, pools, locks and pauses; as `client.admin`."""

from typing import Unpack

from overnight.client.calls import Call, Page, path, read, read_list, read_page, send
from overnight.client.operations import D, Group, iteration, operation
from overnight.client.request_plan import ItemSteps, paginate
from overnight.models.account import Pause, PauseState
from overnight.models.admin import (
    DrainState,
    Fairness,
    LockReleased,
    PauseTarget,
    Pool,
    UserChanges,
    UserCreate,
    UserDetail,
    UserFields,
    UserLock,
    Worker,
)
from overnight.models.field_errors import validate


class Admin(Group[D]):
    """Operations for admins; the service responds 404 to any other key."""

    @iteration
    def users(self, *, limit: int | None = None) -> ItemSteps[UserDetail]:
        """Yield all users, sorted by name."""

        def get_page(size: int, cursor: str | None) -> Call[Page[UserDetail]]:
            return read_page(UserDetail, path("admin", "users"), limit=size, before=cursor)

        yield from paginate(get_page, limit)

    @operation
    def user(self, user: str) -> Call[UserDetail]:
        """Return one user, found by id or name."""
        return read(UserDetail, path("admin", "users", user))

    @operation
    def create_user(
        self, name: str, *, plan: str = "free", is_admin: bool = False
    ) -> Call[UserDetail]:
        """Create a user with the limits of a plan."""
        body = validate(UserCreate, {"name": name, "plan": plan, "is_admin": is_admin})
        return send(UserDetail, "POST", path("admin", "users"), body)

    @operation
    def change_user(self, user: str, **changes: Unpack[UserFields]) -> Call[UserDetail]:
        """Change a user's plan, limits, budget or window; `UserChanges` describes the fields."""
        body = validate(UserChanges, changes)
        return send(UserDetail, "PATCH", path("admin", "users", user), body)

    @operation
    def disable_user(self, user: str) -> Call[UserDetail]:
        """Disable a user: all keys are rejected, no task starts; running tasks may end."""
        return send(UserDetail, "POST", path("admin", "users", user, "disable"))

    @operation
    def enable_user(self, user: str) -> Call[UserDetail]:
        """Enable a disabled user again, with the same keys and limits."""
        return send(UserDetail, "POST", path("admin", "users", user, "enable"))

    @operation
    def workers(self) -> Call[list[Worker]]:
        """Return all workers, sorted by pool."""
        return read_list(Worker, path("admin", "workers"))

    @operation
    def pools(self) -> Call[list[Pool]]:
        """Return all pools, sorted by name."""
        return read_list(Pool, path("admin", "pools"))

    @operation
    def drain(self, worker_id: str) -> Call[DrainState]:
        """Assign no further tasks to a worker."""
        return send(DrainState, "POST", path("admin", "workers", worker_id, "drain"))

    @operation
    def undrain(self, worker_id: str) -> Call[DrainState]:
        """Assign tasks to a draining worker again."""
        return send(DrainState, "POST", path("admin", "workers", worker_id, "undrain"))

    @operation
    def locks(self) -> Call[list[UserLock]]:
        """Return the locks that tasks of all users hold."""
        return read_list(UserLock, path("admin", "locks"))

    @operation
    def release_locks(self, task_id: str) -> Call[LockReleased]:
        """Release a task's locks by ending its claim; the task is queued again at no cost."""
        return send(LockReleased, "POST", path("admin", "locks", task_id, "release"))

    @operation
    def pauses(self) -> Call[list[Pause]]:
        """Return all active pauses."""
        return read_list(Pause, path("admin", "pauses"))

    @operation
    def pause(
        self, *, user: str | None = None, pool: str | None = None, note: str = ""
    ) -> Call[PauseState]:
        """Start no further tasks of a user or in a pool; with neither, no tasks at all."""
        body = validate(PauseTarget, {"user": user, "pool": pool, "note": note})
        return send(PauseState, "POST", path("admin", "pause"), body)

    @operation
    def resume(self, *, user: str | None = None, pool: str | None = None) -> Call[PauseState]:
        """Start tasks again of a user or in a pool; with neither, end the pause of all tasks."""
        body = validate(PauseTarget, {"user": user, "pool": pool})
        return send(PauseState, "POST", path("admin", "resume"), body)

    @operation
    def fairness(self, *, hours: int = 24) -> Call[Fairness]:
        """Return each user's share of the slots and longest wait."""
        return read(Fairness, path("admin", "fairness"), hours=hours)
