"""Routes of triggers: graphs that are submitted when another graph ends."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from overnight.models.account import Trigger, TriggerCreate, TriggerDeleted
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.pagination import PAGE, Limit
from overnight_server.api.http.params import parse_dag_param, parse_trigger_param
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.api.routes.dags import drafts
from overnight_server.domain.ids import show_trigger
from overnight_server.insight.triggers import get_trigger, list_triggers
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewGraph
from overnight_server.intake.triggers import add_trigger, drop_trigger

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1", tags=["triggers"])


@router.get("/triggers")
def list_own_triggers(
    deps: Injected,
    caller: Reader,
    dag_id: Annotated[
        str | None, Query(max_length=200, description="Only triggers of this graph.")
    ] = None,
    limit: Limit = PAGE,
) -> list[Trigger]:
    """List the caller's triggers, newest first."""
    parsed_id = None if dag_id is None else parse_dag_param(dag_id)
    return list_triggers(deps.db, caller.user_id, dag_id=parsed_id, limit=limit)


@router.post("/dags/{dag_id}/triggers", status_code=201)
def create_trigger(
    dag_id: str, body: TriggerCreate, response: Response, deps: Injected, caller: Writer
) -> Trigger:
    """Create a trigger: a graph that is submitted when a graph of the caller ends."""
    tasks, edges = drafts(body.graph, deps)
    graph = NewGraph(tasks, edges, body.graph.title, body.graph.budget_usd)
    trigger_id = add_trigger(
        deps.db,
        caller.user_id,
        parse_dag_param(dag_id),
        graph,
        Caps.of(deps.settings),
        actor=f"user:{caller.user_id}",
        when=body.when,
    )
    response.headers["Location"] = f"{router.prefix}/triggers/{show_trigger(trigger_id)}"
    return get_trigger(deps.db, caller.user_id, trigger_id)


@router.get("/triggers/{trigger_id}")
def read_trigger(trigger_id: str, deps: Injected, caller: Reader) -> Trigger:
    """Return one trigger: whether it has fired, and which graph it submitted."""
    return get_trigger(deps.db, caller.user_id, parse_trigger_param(trigger_id))


@router.delete("/triggers/{trigger_id}")
def drop_own_trigger(trigger_id: str, deps: Injected, caller: Writer) -> TriggerDeleted:
    """Delete a trigger that has not fired."""
    parsed_id = parse_trigger_param(trigger_id)
    drop_trigger(deps.db, caller.user_id, parsed_id, actor=f"user:{caller.user_id}")
    return TriggerDeleted(id=show_trigger(parsed_id))
