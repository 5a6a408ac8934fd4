"""Routes of improvement rules: bad figures of a user's own runs file a task."""

from fastapi import APIRouter, Response

from overnight.models.rules import ImprovementRule, RuleCreate, RuleFigure, RuleRemoved
from overnight_server.api.http.authentication import Reader, Writer
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.params import parse_rule_param
from overnight_server.api.http.thread_route import ThreadRoute, expensive
from overnight_server.control.rule_figures import get_figures, get_rule, list_rules
from overnight_server.control.rules import add_rule, remove_rule
from overnight_server.domain.ids import show_rule

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/rules", tags=["rules"])


@router.get("")
def list_own_rules(deps: Injected, caller: Reader) -> list[ImprovementRule]:
    """List the caller's improvement rules by name."""
    return list_rules(deps.db, caller.user_id)


@router.post("", status_code=201)
def create_rule(
    body: RuleCreate, response: Response, deps: Injected, caller: Writer
) -> ImprovementRule:
    """Add an improvement rule."""
    rule_id = add_rule(deps.db, caller.user_id, body, actor=caller.actor)
    response.headers["Location"] = f"{router.prefix}/{show_rule(rule_id)}"
    return get_rule(deps.db, caller.user_id, rule_id)


@router.get("/{rule_id}")
def read_own_rule(rule_id: str, deps: Injected, caller: Reader) -> ImprovementRule:
    """Return one improvement rule."""
    return get_rule(deps.db, caller.user_id, parse_rule_param(rule_id))


@router.get("/{rule_id}/figures")
@expensive
def measure_rule(rule_id: str, deps: Injected, caller: Reader) -> list[RuleFigure]:
    """Return what a rule measures now, the highest value first; nothing is filed."""
    return get_figures(deps.db, caller.user_id, parse_rule_param(rule_id))


@router.delete("/{rule_id}")
def remove_own_rule(rule_id: str, deps: Injected, caller: Writer) -> RuleRemoved:
    """Remove an improvement rule; tasks that it has filed stay."""
    parsed_id = parse_rule_param(rule_id)
    remove_rule(deps.db, caller.user_id, parsed_id, actor=caller.actor)
    return RuleRemoved(id=show_rule(parsed_id))
