import pytest

from overnight_server.settings import load
from overnight_worker.stop_policy import (
    LOST_GRACE_SECONDS,
    WATCHDOG_SLACK_SECONDS,
    Spans,
    StopPolicy,
    StopReason,
)

SPANS = Spans(granted=100, lease=30, margin=5, cancel_grace=20, timeout_grace=4, shutdown_grace=6)


@pytest.fixture
def ladder() -> StopPolicy:
    return StopPolicy(SPANS, began=1000)


def test_a_run_within_its_time_and_lease_is_left_alone(ladder: StopPolicy) -> None:
    ladder.look(1024, draining=False)

    assert (ladder.reason, ladder.ends_at) == (None, None)


def test_the_lease_is_trusted_only_until_its_margin(ladder: StopPolicy) -> None:
    ladder.look(1025, draining=False)

    assert ladder.reason is StopReason.LOST
    assert ladder.ends_at == 1025


def test_an_answer_extends_the_trust_from_before_its_request(ladder: StopPolicy) -> None:
    ladder.confirm(sent_at=1010)
    ladder.look(1034, draining=False)

    assert ladder.reason is None
    assert ladder.trusted_until == 1035


def test_a_late_answer_never_takes_trust_back(ladder: StopPolicy) -> None:
    ladder.confirm(sent_at=1020)
    ladder.confirm(sent_at=1010)

    assert ladder.trusted_until == 1045


def test_a_run_out_of_time_has_a_short_grace_counted_from_its_deadline(ladder: StopPolicy) -> None:
    ladder.confirm(1095)
    ladder.look(1103, draining=False)

    assert (ladder.reason, ladder.ends_at) == (StopReason.TIMEOUT, 1104)


@pytest.mark.parametrize(
    ("reason", "end"),
    [(StopReason.CANCELLED, 1030), (StopReason.WINDOW, 1030), (StopReason.SHUTDOWN, 1016)],
)
def test_each_way_to_stop_has_its_own_grace(
    ladder: StopPolicy, reason: StopReason, end: float
) -> None:
    ladder.ask(reason, 1010)
    ladder.ask(reason, 1015)

    assert (ladder.reason, ladder.ends_at) == (reason, end)


def test_a_lost_run_has_no_grace_beyond_its_trust(ladder: StopPolicy) -> None:
    other = StopPolicy(SPANS, began=1000)

    ladder.ask(StopReason.LOST, 1010)
    other.ask(StopReason.LOST, 1024)

    assert ladder.ends_at == 1010 + LOST_GRACE_SECONDS
    assert other.ends_at == 1025


def test_the_strongest_reason_is_recorded_and_the_earliest_end_holds(ladder: StopPolicy) -> None:
    ladder.ask(StopReason.CANCELLED, 1010)
    ladder.look(1012, draining=True)

    assert (ladder.reason, ladder.ends_at) == (StopReason.CANCELLED, 1018)


def test_the_watchdog_waits_for_the_gentler_ways_but_not_past_the_lease(ladder: StopPolicy) -> None:
    by_lease = ladder.watchdog_at
    ladder.ask(StopReason.SHUTDOWN, 1001)
    by_shutdown = ladder.watchdog_at
    late = StopPolicy(SPANS, began=1000)
    late.confirm(1099)

    assert by_lease == 1027.5
    assert by_shutdown == 1007 + WATCHDOG_SLACK_SECONDS
    assert late.watchdog_at == 1104 + WATCHDOG_SLACK_SECONDS


def test_the_deployment_clocks_leave_five_seconds_before_the_lease_ends() -> None:
    spans = Spans.of(load({}), granted=60)

    assert (spans.lease, spans.margin, spans.timeout_grace) == (30, 5, 5)
