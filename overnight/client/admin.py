"""What admins do: users, workers, everybody's locks, pauses; reached as `client.admin`."""

from typing import Unpack

from overnight.client.account_calls import asked, path, read, read_list, read_page, send
from overnight.client.operations import D, Group, operation, series
from overnight.client.pagination import paged
from overnight.client.scripts import Series
from overnight.client.task_calls import Call, Page
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


class Admin(Group[D]):
    """What admins do; to anybody else's key these routes are not there."""

    @series
    def users(self, *, limit: int | None = None) -> Series[UserDetail]:
        """Yield every user, by name."""

        def ask(size: int, cursor: str | None) -> Call[Page[UserDetail]]:
            return read_page(UserDetail, path("admin", "users"), limit=size, before=cursor)

        yield from paged(ask, limit)

    @operation
    def user(self, user: str) -> Call[UserDetail]:
        """Return one user, by id or name."""
        return read(UserDetail, path("admin", "users", user))

    @operation
    def create_user(
        self, name: str, *, plan: str = "free", is_admin: bool = False
    ) -> Call[UserDetail]:
        """Make a user with the limits of a plan."""
        body = asked(UserCreate, {"name": name, "plan": plan, "is_admin": is_admin})
        return send(UserDetail, "POST", path("admin", "users"), body)

    @operation
    def change_user(self, user: str, **changes: Unpack[UserFields]) -> Call[UserDetail]:
        """Change a user's plan, limits, budget or window; `UserChanges` describes the fields."""
        body = asked(UserChanges, changes)
        return send(UserDetail, "PATCH", path("admin", "users", user), body)

    @operation
    def disable_user(self, user: str) -> Call[UserDetail]:
        """Shut a user out: no key opens anything, nothing new starts; what runs may end."""
        return send(UserDetail, "POST", path("admin", "users", user, "disable"))

    @operation
    def enable_user(self, user: str) -> Call[UserDetail]:
        """Let a user in again, with the keys and limits they had."""
        return send(UserDetail, "POST", path("admin", "users", user, "enable"))

    @operation
    def workers(self) -> Call[list[Worker]]:
        """Return the workers, by pool."""
        return read_list(Worker, path("admin", "workers"))

    @operation
    def pools(self) -> Call[list[Pool]]:
        """Return the pools, by name."""
        return read_list(Pool, path("admin", "pools"))

    @operation
    def drain(self, worker_id: str) -> Call[DrainState]:
        """Give a worker nothing new."""
        return send(DrainState, "POST", path("admin", "workers", worker_id, "drain"))

    @operation
    def undrain(self, worker_id: str) -> Call[DrainState]:
        """Give a draining worker work again."""
        return send(DrainState, "POST", path("admin", "workers", worker_id, "undrain"))

    @operation
    def locks(self) -> Call[list[UserLock]]:
        """Return the locks that anybody's tasks hold."""
        return read_list(UserLock, path("admin", "locks"))

    @operation
    def release_locks(self, task_id: str) -> Call[LockReleased]:
        """End the claim behind a task's locks; the task goes back unspent."""
        return send(LockReleased, "POST", path("admin", "locks", task_id, "release"))

    @operation
    def pauses(self) -> Call[list[Pause]]:
        """Return every pause in force."""
        return read_list(Pause, path("admin", "pauses"))

    @operation
    def pause(
        self, *, user: str | None = None, pool: str | None = None, note: str = ""
    ) -> Call[PauseState]:
        """Let nothing new start: of a user, in a pool, or with neither anywhere."""
        body = asked(PauseTarget, {"user": user, "pool": pool, "note": note})
        return send(PauseState, "POST", path("admin", "pause"), body)

    @operation
    def resume(self, *, user: str | None = None, pool: str | None = None) -> Call[PauseState]:
        """Let work start again: of a user, in a pool, or with neither everywhere."""
        body = asked(PauseTarget, {"user": user, "pool": pool})
        return send(PauseState, "POST", path("admin", "resume"), body)

    @operation
    def fairness(self, *, hours: int = 24) -> Call[Fairness]:
        """Return who waited how long for what share of the slots."""
        return read(Fairness, path("admin", "fairness"), hours=hours)
