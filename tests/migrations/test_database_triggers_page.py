"""The page about database triggers lists those of the database, in the order in which they fire."""

import re
from pathlib import Path

from overnight_server.store.statements import sources
from tests.support.deployment import Deployment

PAGE = (Path(__file__).parents[2] / "docs/database-triggers.md").read_text()
ROW = re.compile(r"^\| ((?:before|after) [^|]+) \| `(\w+)` \|", re.MULTILINE)
IN_FIRING_ORDER = """
    SELECT c.relname AS table_name, t.tgname AS name,
           concat_ws(' ', CASE WHEN t.tgtype & 2 > 0 THEN 'before' ELSE 'after' END,
                     concat_ws(' or ', CASE WHEN t.tgtype & 4 > 0 THEN 'insert' END,
                                       CASE WHEN t.tgtype & 8 > 0 THEN 'delete' END,
                                       CASE WHEN t.tgtype & 16 > 0 THEN 'update' END))
           || CASE WHEN t.tgtype & 1 > 0 THEN ', each row' ELSE ', each statement' END AS fires
      FROM pg_trigger t
      JOIN pg_class c ON c.oid = t.tgrelid
     WHERE NOT t.tgisinternal AND c.relnamespace = 'public'::regnamespace
     ORDER BY c.relname, t.tgtype & 2 = 0, t.tgtype & 1 = 0, t.tgname
"""


def test_the_page_lists_every_trigger_in_firing_order(deployment: Deployment) -> None:
    order: dict[str, list[tuple[str, str]]] = {}
    for row in deployment.rows(IN_FIRING_ORDER):
        order.setdefault(row["table_name"], []).append((row["fires"], row["name"]))

    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    listed = {table: ROW.findall(sections[table]) for table in order if table in sections}
    audit_only = [row for table in order if table not in sections for row in order[table]]

    assert listed == {table: order[table] for table in listed}
    assert ROW.findall(sections["Audit only"]) == audit_only


def test_the_page_names_triggers_and_statements_that_exist(deployment: Deployment) -> None:
    counters = PAGE.partition("## What keeps each counter")[2]
    keepers = {
        name
        for line in counters.splitlines()[4:]
        for name in re.findall(r"`(\w+)`", line.split("|")[2])
    }
    triggers = {row["name"] for row in deployment.rows(IN_FIRING_ORDER)}

    assert keepers
    assert keepers <= triggers | set(sources())
