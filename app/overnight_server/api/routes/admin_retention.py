"""Admin routes for retention: how long rows are kept, and a pass that deletes old ones.

Only admins can call them; other callers get 404.
"""

from fastapi import APIRouter

from overnight.models.admin import PrunedRows, RetentionRule, RetentionRun
from overnight_server.api.http.authentication import Admin
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.domain.retention import RULES, days_of_rules, parse_days
from overnight_server.insight.retention import list_retention
from overnight_server.maintenance.retention import prune

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1/admin/retention", tags=["admin"])


@router.get("")
def list_retention_rules(deps: Injected, _caller: Admin) -> list[RetentionRule]:
    """List how long rows are kept, and how many are older."""
    settings = deps.settings
    by_setting = {
        rule.setting: int(getattr(settings, rule.setting)) for rule in RULES if rule.setting
    }
    days = days_of_rules(parse_days(settings.retention_days))
    return list(list_retention(deps.admin_db, days, by_setting))


@router.post("/run")
def run_retention(body: RetentionRun, deps: Injected, _caller: Admin) -> PrunedRows:
    """Delete old rows for some seconds, as the sweep `prune` does; a dry run counts them."""
    days = days_of_rules(parse_days(deps.settings.retention_days))
    pruned = prune(deps.admin_db, days, position=body.position, is_dry_run=body.dry_run)
    rows = {name: count for name, count in pruned.deleted.items() if count}
    return PrunedRows(rows=rows, dry_run=body.dry_run, position=pruned.position)
