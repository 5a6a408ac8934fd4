"""Periods of partitions."""

from datetime import UTC, datetime, timedelta

import pytest

from overnight_server.domain.retention import missing_periods, partition_period

NOON = datetime(2031, 3, 10, 12, tzinfo=UTC)


@pytest.mark.parametrize("days", [1, 14, 90, 365, 36_500])
@pytest.mark.parametrize("covered_days", [None, -30, 0, 2, 2000])
def test_missing_periods_follow_each_other_and_reach_ahead(
    days: int, covered_days: int | None
) -> None:
    period = partition_period(timedelta(days=days))
    covered = None if covered_days is None else NOON + timedelta(days=covered_days)

    periods = list(missing_periods(NOON, covered, period))

    assert all(first > NOON for first, _ in periods)
    assert all(first < end for first, end in periods)
    assert [end for _, end in periods[:-1]] == [first for first, _ in periods[1:]]
    end = max([end for _, end in periods], default=covered)
    assert end is not None
    assert end >= NOON + timedelta(days=3) + period


def test_a_table_has_about_sixteen_partitions_in_its_retention() -> None:
    for days in range(16, 4000):
        assert 16 <= days / partition_period(timedelta(days=days)).days < 32
