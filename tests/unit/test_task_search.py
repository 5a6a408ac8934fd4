"""The search of tasks as text: what is understood, what is left out, and the same as a command."""

from datetime import UTC, datetime

import pytest

from overnight_server.dashboard.clocks import Clock
from overnight_server.dashboard.commands import list_command
from overnight_server.dashboard.search import Search, parse_search
from overnight_server.domain.lifecycle import ACTIVE, OPEN, State

NOW = datetime(2026, 11, 17, 7, 12, tzinfo=UTC)
GRAPH = "dag_01M7TY3C9XHMQRNEE28T1YGW00"


def search(text: str) -> Search:
    return parse_search(text, Clock(NOW, "UTC"), {"8T1YGW": GRAPH}.get)


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("tag:a tag:b", "tag:b"),
        ("state:ready state:done", "state:done"),
        ("waits:lock waits:window", "waits:window"),
        ("age:<12h made:today", "made:today"),
        ("title:one two", "two"),
        ("cost:>1 cost:>2", "cost:>2"),
    ],
)
def test_a_second_value_is_left_out_and_named(text: str, left_out: str) -> None:
    found = search(text)

    [problem] = found.problems
    assert problem.startswith(f"{left_out}: is left out:")
    assert len(found.chips) == 1
    assert found.fields == {**search(text.removesuffix(left_out)).fields}


def test_the_two_ends_of_a_range_are_two_values() -> None:
    found = search("cost:>1 cost:<5 made:>2026-11-01 made:<2026-11-10")

    assert found.problems == ()
    assert (found.fields["min_cost_usd"], found.fields["below_cost_usd"]) == (1.0, 5.0)
    assert found.fields["created_before"] == datetime(2026, 11, 10, tzinfo=UTC)


def test_a_graph_is_named_by_its_id_or_the_end_of_it() -> None:
    assert search("graph:8T1YGW").fields == {"dag_id": GRAPH}
    assert search(f"graph:{GRAPH}").fields == {"dag_id": GRAPH}
    assert "neither the id of a graph" in search("graph:ZZZZZZ").problems[0]


@pytest.mark.parametrize(
    ("text", "states", "command"),
    [
        ("", None, "overnight list"),
        ("", ACTIVE, "overnight list --status claimed --status running"),
        ("", OPEN, "overnight list --status pending --status claimed --status running"),
        ("", frozenset({State.DEAD_LETTERED}), "overnight list --status dead_lettered"),
        ("tag:a waits:lock", None, "overnight list --tag a --waits-for lock"),
        # No command lists these.
        ("waits:window", None, ""),
        ("tag:a tag:b", None, ""),
        ("", frozenset(), ""),
        ("", frozenset({State.PENDING}), ""),
    ],
)
def test_the_command_lists_the_same_or_there_is_none(
    text: str, states: frozenset[State] | None, command: str
) -> None:
    assert list_command(search(text), states) == command
