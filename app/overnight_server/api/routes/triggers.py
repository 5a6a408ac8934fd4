"""The routes of triggers: graphs that are let in when another has ended."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from overnight.models.account import Trigger, TriggerCreate, TriggerDeleted
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Use
from overnight_server.api.http.pagination import PAGE, Limit
from overnight_server.api.http.path_params import dag_named, trigger_named
from overnight_server.api.routes.dags import drafts
from overnight_server.domain.ids import show_trigger
from overnight_server.insight.triggers import get_trigger, list_triggers
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import NewGraph
from overnight_server.intake.triggers import add_trigger, drop_trigger

router = APIRouter(prefix="/api/v1", tags=["triggers"])


@router.get("/triggers")
def list_own_triggers(
    parts: Use,
    caller: Reader,
    dag_id: Annotated[
        str | None, Query(max_length=200, description="Only those of one graph.")
    ] = None,
    limit: Limit = PAGE,
) -> list[Trigger]:
    """List what the ends of the caller's graphs set off, the newest first."""
    named = None if dag_id is None else dag_named(dag_id)
    return list_triggers(parts.db, caller.user_id, dag_id=named, limit=limit)


@router.post("/dags/{dag_id}/triggers", status_code=201)
def create_trigger(
    dag_id: str, body: TriggerCreate, response: Response, parts: Use, caller: Writer
) -> Trigger:
    """Have a graph let in once another of the caller's has ended so."""
    tasks, edges = drafts(body.graph, parts)
    graph = NewGraph(tasks, edges, body.graph.title, body.graph.budget_usd)
    made = add_trigger(
        parts.db,
        caller.user_id,
        dag_named(dag_id),
        graph,
        Caps.of(parts.settings),
        actor=f"user:{caller.user_id}",
        when=body.when,
    )
    response.headers["Location"] = f"{router.prefix}/triggers/{show_trigger(made)}"
    return get_trigger(parts.db, caller.user_id, made)


@router.get("/triggers/{trigger_id}")
def read_trigger(trigger_id: str, parts: Use, caller: Reader) -> Trigger:
    """Tell whether a trigger has fired, and what it let in."""
    return get_trigger(parts.db, caller.user_id, trigger_named(trigger_id))


@router.delete("/triggers/{trigger_id}")
def drop_own_trigger(trigger_id: str, parts: Use, caller: Writer) -> TriggerDeleted:
    """Take a trigger back that has not fired."""
    named = trigger_named(trigger_id)
    drop_trigger(parts.db, caller.user_id, named, actor=f"user:{caller.user_id}")
    return TriggerDeleted(id=show_trigger(named))
