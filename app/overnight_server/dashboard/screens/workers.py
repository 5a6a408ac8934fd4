"""Workers: whether the system is alive, with its slots, pools, pauses and sweeps."""

from datetime import timedelta
from typing import Any

from markupsafe import Markup
from starlette.responses import Response

from overnight.models.admin import Worker
from overnight_server.control import pauses
from overnight_server.control.drain import drain, undrain
from overnight_server.control.pauses import PauseSubject
from overnight_server.dashboard.clocks import count
from overnight_server.dashboard.life_lines import meter
from overnight_server.dashboard.screen import Screen
from overnight_server.dashboard.visit import Visit
from overnight_server.insight.pauses import list_pauses
from overnight_server.insight.workers import health, list_pools, list_workers

screen = Screen("workers", for_admins=True)
MOST = 200
#: A sweep that was not run for so many times its usual pause is late.
LATE_SECONDS = 300


@screen.page("/workers")
def show_workers(visit: Visit) -> Response:
    """Show workers, pools, pauses and sweeps."""
    view = read_view(visit)
    return visit.page("workers.html", title="Agents and workers", place="workers", **view)


@screen.part("workers", tokens=5)
def show_workers_part(visit: Visit, _key: str) -> Markup | None:
    """Return the whole page; signs of life change every second."""
    if not visit.is_admin:
        return None
    return visit.fragment("parts/workers.html", **read_view(visit))


@screen.act("/workers/{worker_id}/drain", scope="admin")
def drain_worker(visit: Visit, worker_id: str) -> Response:
    """Give a worker no new tasks."""
    name = drain(visit.admin_db, worker_id)
    return visit.done(f"{name} gets no new tasks.", undo=f"/workers/{worker_id}/undrain")


@screen.act("/workers/{worker_id}/undrain", scope="admin")
def undrain_worker(visit: Visit, worker_id: str) -> Response:
    """Give a draining worker new tasks again."""
    name = undrain(visit.admin_db, worker_id)
    return visit.done(f"{name} gets new tasks again.", undo=f"/workers/{worker_id}/drain")


@screen.act("/workers/pause", scope="admin")
def pause(visit: Visit) -> Response:
    """Pause a pool, or with an empty name everything."""
    pool = visit.value("pool") or None
    subject = PauseSubject(None, pool)
    pauses.pause(visit.admin_db, subject, actor=visit.actor, note=visit.value("note"))
    what = f"The pool {pool} is" if pool else "Everything is"
    undo_fields = {"pool": pool or ""}
    return visit.done(f"{what} paused.", undo="/workers/resume", undo_fields=undo_fields)


@screen.act("/workers/resume", scope="admin")
def resume(visit: Visit) -> Response:
    """End the pause of a pool, or with an empty name that of everything."""
    pool = visit.value("pool") or None
    known = pauses.resume(visit.admin_db, PauseSubject(None, pool), actor=visit.actor)
    if not known:
        return visit.refused("There was no such pause. Nothing was changed.")
    return visit.done("Tasks start again.")


def read_view(visit: Visit) -> dict[str, Any]:
    """Return what the page shows."""
    liveness = timedelta(seconds=visit.settings.worker_liveness)
    workers = list_workers(visit.admin_db, liveness=liveness, offline=True, limit=MOST)
    alive = [worker for worker in workers if worker.status in {"active", "draining"}]
    sweeps = health(visit.admin_db, liveness=liveness).sweeps
    paused = list_pauses(visit.admin_db)
    return {
        "sentence": sentence(alive),
        "rows": [{"worker": worker, "beat": _beat(worker, visit, liveness)} for worker in workers],
        "pools": list_pools(visit.admin_db, liveness=liveness, limit=MOST),
        "sweeps": sorted(sweeps.items()),
        "late": LATE_SECONDS,
        "pauses": paused,
        "is_all_paused": any(one.scope == "all" for one in paused),
        "liveness": liveness,
        "flower": _flower(visit),
    }


def sentence(alive: list[Worker]) -> str:
    """Return whether the system is alive."""
    if not alive:
        return "No worker is alive: nothing runs."
    busy, slots = sum(one.busy for one in alive), sum(one.slots for one in alive)
    agents = sum(one.kind == "pull" for one in alive)
    workers = len(alive) - agents
    parts = [count(workers, "worker")] if workers else []
    parts += [count(agents, "agent")] if agents else []
    return f"{' and '.join(parts)}, {busy} of {count(slots, 'slot')} busy."


def _beat(worker: Worker, visit: Visit, liveness: timedelta) -> Markup:
    age = (visit.clock.now - worker.last_seen_at) / liveness
    kind = "ok" if worker.status == "active" else "warn" if worker.status == "draining" else "idle"
    return meter([(kind, max(0.0, 1 - age))], "time left until it counts as silent", height=6)


def _flower(visit: Visit) -> str:
    """Return the address of Flower, which shows the messages of Celery; empty without a port."""
    settings = visit.settings
    return f"http://{settings.flower_host}:{settings.flower_port}" if settings.flower_port else ""
