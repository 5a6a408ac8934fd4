import pytest

from overnight_server.settings import load
from overnight_worker.stop_policy import (
    LOST_GRACE_SECONDS,
    WATCHDOG_SLACK_SECONDS,
    StopPolicy,
    StopReason,
    TimeLimits,
)

LIMITS = TimeLimits(
    granted=100, lease=30, margin=5, cancel_grace=20, timeout_grace=4, shutdown_grace=6
)


@pytest.fixture
def policy() -> StopPolicy:
    return StopPolicy(LIMITS, start_requested_at=1000)


def test_a_run_within_its_time_and_lease_is_not_stopped(policy: StopPolicy) -> None:
    policy.check(1024, shutting_down=False)

    assert (policy.reason, policy.forced_end_at) == (None, None)


def test_the_lease_is_trusted_only_until_its_margin(policy: StopPolicy) -> None:
    policy.check(1025, shutting_down=False)

    assert policy.reason is StopReason.LOST
    assert policy.forced_end_at == 1025


def test_a_heartbeat_extends_the_trust_from_when_it_was_sent(policy: StopPolicy) -> None:
    policy.confirm_lease(sent_at=1010)
    policy.check(1034, shutting_down=False)

    assert policy.reason is None
    assert policy.trusted_until == 1035


def test_a_late_answer_to_a_heartbeat_does_not_shorten_the_trust(policy: StopPolicy) -> None:
    policy.confirm_lease(sent_at=1020)
    policy.confirm_lease(sent_at=1010)

    assert policy.trusted_until == 1045


def test_the_grace_after_a_timeout_counts_from_the_deadline(policy: StopPolicy) -> None:
    policy.confirm_lease(1095)
    policy.check(1103, shutting_down=False)

    assert (policy.reason, policy.forced_end_at) == (StopReason.TIMEOUT, 1104)


@pytest.mark.parametrize(
    ("reason", "end"),
    [(StopReason.CANCELLED, 1030), (StopReason.WINDOW, 1030), (StopReason.SHUTDOWN, 1016)],
)
def test_each_stop_reason_has_its_own_grace(
    policy: StopPolicy, reason: StopReason, end: float
) -> None:
    policy.request_stop(reason, 1010)
    policy.request_stop(reason, 1015)

    assert (policy.reason, policy.forced_end_at) == (reason, end)


def test_a_lost_run_is_ended_before_its_lease_is_in_doubt(policy: StopPolicy) -> None:
    other = StopPolicy(LIMITS, start_requested_at=1000)

    policy.request_stop(StopReason.LOST, 1010)
    other.request_stop(StopReason.LOST, 1024)

    assert policy.forced_end_at == 1010 + LOST_GRACE_SECONDS
    assert other.forced_end_at == 1025


def test_the_strongest_reason_is_recorded_and_the_earliest_end_applies(policy: StopPolicy) -> None:
    policy.request_stop(StopReason.CANCELLED, 1010)
    policy.check(1012, shutting_down=True)

    assert (policy.reason, policy.forced_end_at) == (StopReason.CANCELLED, 1018)


def test_the_watchdog_acts_after_the_forced_end_and_before_the_lease_ends(
    policy: StopPolicy,
) -> None:
    by_lease = policy.watchdog_at
    policy.request_stop(StopReason.SHUTDOWN, 1001)
    by_shutdown = policy.watchdog_at
    late = StopPolicy(LIMITS, start_requested_at=1000)
    late.confirm_lease(1099)

    assert by_lease == 1027.5
    assert by_shutdown == 1007 + WATCHDOG_SLACK_SECONDS
    assert late.watchdog_at == 1104 + WATCHDOG_SLACK_SECONDS


def test_the_grace_of_a_task_lengthens_all_but_that_of_a_shutdown() -> None:
    own = TimeLimits.of(load({}), granted=60, own_grace=120)
    short = TimeLimits.of(load({}), granted=60, own_grace=2)

    assert (own.cancel_grace, own.timeout_grace, own.shutdown_grace) == (121, 121, 5)
    assert (short.cancel_grace, short.timeout_grace) == (30, 5)


def test_the_default_settings_leave_five_seconds_before_the_lease_ends() -> None:
    limits = TimeLimits.of(load({}), granted=60)

    assert (limits.lease, limits.margin, limits.timeout_grace) == (30, 5, 5)
