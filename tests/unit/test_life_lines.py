"""The life lines of lists: what is drawn of a life, in which colour, and what the label says."""

import re
from datetime import UTC, datetime, timedelta

from overnight.models.nights import LifeSegment, TaskLife
from overnight_server.dashboard.life_lines import Axis, kinds_of_waits, life_line

BEGIN = datetime(2026, 11, 16, 20, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
AXIS = Axis(BEGIN, BEGIN + 10 * HOUR)


def life(*parts: tuple[str, str, float]) -> TaskLife:
    """Return a life from kinds, codes and hours."""
    segments, at = [], BEGIN
    for kind, code, hours in parts:
        until = at + hours * HOUR
        segments.append(
            LifeSegment(
                kind=kind,
                code=code,
                since=at,
                until=until,
                seconds=(until - at).total_seconds(),
                is_open=False,
                text="",
                outcome="completed" if kind == "running" else None,
            )
        )
        at = until
    return TaskLife(
        id="task_01M7TY3C9XHMQRNEE28T1YGW00",
        title="Port <it>",
        state="completed",
        created_at=BEGIN,
        until=at,
        is_over=True,
        segments=segments,
        by_cause=[],
        made_at=at,
    )


def drawn(one: TaskLife) -> list[tuple[str, float, float]]:
    marks = re.findall(
        r'<rect class="([^"]*)" x="([\d.]+)%" y="\d+" width="([\d.]+)%"', life_line(one, AXIS)
    )
    return [(kind, float(left), float(width)) for kind, left, width in marks]


def test_each_wait_has_the_colour_of_its_cause() -> None:
    one = life(("waiting", "dependency", 2), ("waiting", "lock", 1), ("running", "state", 1))

    assert drawn(one) == [("w-dep", 0, 20), ("w-lock", 20, 10), ("b b-ok", 30, 10)]
    assert kinds_of_waits(one, AXIS) == {"dep", "lock"}
    label = "Port &lt;it&gt;: waited 3 h (other tasks 2 h, a lock 1 h), worked 1 h"
    assert f'aria-label="{label}"' in life_line(one, AXIS)


def test_causes_that_change_too_fast_to_be_seen_become_one_mark() -> None:
    flicker = [
        ("waiting", code, 0.001) for _ in range(500) for code in ("plan_concurrency", "slots")
    ]
    flicker = [(kind, code, 0.0015 if code == "slots" else hours) for kind, code, hours in flicker]
    one = life(("waiting", "window", 2), *flicker, ("running", "state", 0.0001))

    assert [kind for kind, _, _ in drawn(one)] == ["w-window", "w-queue", "b b-ok"]
    assert sum(width for _, _, width in drawn(one)) >= 32.5


def test_what_lies_outside_of_the_axis_is_not_drawn() -> None:
    early = Axis(BEGIN + HOUR, BEGIN + 2 * HOUR)
    one = life(("waiting", "dependency", 0.5), ("waiting", "lock", 2.5), ("running", "state", 1))

    assert re.findall(r'class="([^"]*)" x="([\d.]+)%"', life_line(one, early)) == [
        ("w-lock", "0.0")
    ]
    assert life_line(None, early) == ""
