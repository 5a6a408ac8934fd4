"""How long to wait before another run, and whether to run again at all."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight_server.domain.retry import RetryRules, Strategy, delay_seconds

CHANCES = st.floats(min_value=0, max_value=1, exclude_max=True)
ATTEMPTS = st.integers(min_value=1, max_value=10_000)
POLICIES = st.builds(
    RetryRules,
    strategy=st.sampled_from(Strategy),
    initial_delay_sec=st.none() | st.floats(min_value=0, max_value=86_400),
    backoff_multiplier=st.floats(min_value=1, max_value=100),
    max_delay_sec=st.floats(min_value=0, max_value=604_800),
    jitter=st.booleans(),
)


@pytest.mark.parametrize(
    ("strategy", "waits"),
    [
        (Strategy.EXPONENTIAL, [10, 20, 40, 80, 160, 300, 300]),
        (Strategy.QUADRATIC, [5, 20, 45, 80, 125, 180, 245, 300, 300]),
        (Strategy.FIXED, [10, 10, 10, 10]),
        (Strategy.IMMEDIATE, [0, 0, 0, 0]),
    ],
)
def test_the_wait_grows_by_its_strategy(strategy: Strategy, waits: list[float]) -> None:
    policy = RetryRules(strategy, jitter=False)

    grown = [delay_seconds(policy, made, 0.5) for made in range(1, len(waits) + 1)]

    assert grown == waits


@pytest.mark.parametrize(
    ("strategy", "waits"),
    [
        (Strategy.EXPONENTIAL, [2, 6, 18]),
        (Strategy.QUADRATIC, [2, 8, 18]),
        (Strategy.FIXED, [2, 2, 2]),
        (Strategy.IMMEDIATE, [0, 0, 0]),
    ],
)
def test_the_wait_grows_from_the_requested_base(strategy: Strategy, waits: list[float]) -> None:
    policy = RetryRules(strategy, initial_delay_sec=2, backoff_multiplier=3, jitter=False)

    assert [delay_seconds(policy, made, 0.0) for made in (1, 2, 3)] == waits


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 5.0), (0.25, 7.5), (0.5, 10.0), (0.75, 12.5)])
def test_jitter_spreads_from_half_to_one_and_a_half(chance: float, wait: float) -> None:
    assert delay_seconds(RetryRules(), 1, chance) == wait


def test_without_jitter_the_wait_is_not_random() -> None:
    policy = RetryRules(jitter=False)

    assert delay_seconds(policy, 2, 0.0) == delay_seconds(policy, 2, 0.999)


@given(POLICIES, ATTEMPTS, CHANCES)
def test_no_wait_ever_exceeds_the_cap(policy: RetryRules, attempts: int, chance: float) -> None:
    assert 0 <= delay_seconds(policy, attempts, chance) <= policy.max_delay_sec


@given(POLICIES, ATTEMPTS, CHANCES)
def test_jitter_stays_within_half_of_the_plain_wait(
    policy: RetryRules, attempts: int, chance: float
) -> None:
    uncapped = {**vars(policy), "max_delay_sec": float("inf")}
    plain = delay_seconds(RetryRules(**{**uncapped, "jitter": False}), attempts, chance)
    spread = delay_seconds(RetryRules(**{**uncapped, "jitter": True}), attempts, chance)

    assert plain * 0.5 <= spread <= plain * 1.5


@given(POLICIES, CHANCES)
def test_a_further_attempt_never_waits_less(policy: RetryRules, chance: float) -> None:
    waits = [delay_seconds(policy, attempts, chance) for attempts in range(1, 80)]

    assert all(earlier <= later for earlier, later in pairwise(waits))


@given(st.floats(min_value=0, max_value=0.99))
def test_a_larger_random_number_never_shortens_the_wait(chance: float) -> None:
    policy = RetryRules()

    assert delay_seconds(policy, 1, chance) <= delay_seconds(policy, 1, chance + 0.005)


def test_a_thousand_attempts_do_not_overflow() -> None:
    policy = RetryRules(backoff_multiplier=100.0)

    assert delay_seconds(policy, 1000, 0.5) == 300.0


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (["timeout"], True),
        (["crash"], True),
        (["rate_limit"], True),
        (["invalid_output"], True),
        (["error"], True),
        (["auth_failure"], False),
        (["budget_exceeded"], False),
        (["cancelled"], False),
        (["no_handler"], False),
        ([""], False),
        ([], False),
        (["error", "ValueError"], True),
        (["error", "auth_failure"], False),
    ],
)
def test_the_default_policy_retries_transient_failures(
    classes: list[str], *, expected: bool
) -> None:
    assert RetryRules().wants(*classes) is expected


def test_no_retry_on_overrides_retry_on() -> None:
    policy = RetryRules(retry_on=("error", "KeyError"), no_retry_on=("KeyError",))

    assert policy.wants("error", "ValueError")
    assert not policy.wants("error", "KeyError")


def test_an_exception_can_be_named_alone() -> None:
    policy = RetryRules(retry_on=("ConnectionError",), no_retry_on=())

    assert policy.wants("error", "ConnectionError")
    assert not policy.wants("error", "ValueError")
