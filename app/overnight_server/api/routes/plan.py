"""Route of plans: a dry run of a batch of tasks, without submitting it."""

from collections.abc import Iterator

from fastapi import APIRouter

from overnight.errors import FieldError, InvalidGraph
from overnight.models.tasks import Plan, PlanRequest
from overnight_server.api.http.authentication import Reader
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.thread_route import ThreadRoute, expensive
from overnight_server.forecast.plan import plan
from overnight_server.gate.claim import ClaimSettings
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge
from overnight_server.intake.translate_request import new_task

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/plan", tags=["plan"])


@router.post("")
@expensive
def simulate_batch(body: PlanRequest, deps: Injected, caller: Reader) -> Plan:
    """Forecast a batch as if it were added after all waiting tasks; nothing is submitted."""
    if wrong := list(_dangling_edges(body)):
        raise InvalidGraph(wrong)
    return plan(
        deps.db,
        caller.user_id,
        [new_task(task, deps.settings, task.idempotency_key) for task in body.tasks],
        Caps.of(deps.settings),
        ClaimSettings.from_settings(deps.settings),
        edges=[Edge(edge.parent, edge.child) for edge in body.edges],
        by_at=body.by_at,
        simulate=deps.simulation_process.simulate,
    )


def _dangling_edges(body: PlanRequest) -> Iterator[FieldError]:
    """Yield each end of an edge that names no task of the batch."""
    last = len(body.tasks) - 1
    for place, edge in enumerate(body.edges):
        for end in ("parent", "child"):
            if getattr(edge, end) > last:
                yield FieldError(
                    f"edges.{place}.{end}",
                    "names no task of the batch",
                    f"a whole number from 0 to {last}",
                )
