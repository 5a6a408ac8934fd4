"""The judge: every way a run can end, with and without attempts left, under every policy."""

from dataclasses import replace
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight_server.domain.claims import FailedRun
from overnight_server.domain.lifecycle import MOVES, LifecycleEvent, State
from overnight_server.domain.results import (
    Busy,
    Deferred,
    Died,
    Expired,
    Interrupted,
    Lost,
    Raised,
    Released,
    Result,
    Returned,
    StoppedByBudget,
    StoppedByCancel,
    TimedOut,
    WaitingForTasks,
)
from overnight_server.domain.retry import Escalation, RetryRules, Strategy
from overnight_server.domain.verdicts import (
    MEMORY_EXCEEDED,
    TaskHistory,
    Verdict,
    is_poison,
    judge,
)

# Ten seconds after the first run, and no chance about it.
PLAIN = RetryRules(Strategy.FIXED, jitter=False)
FIRST_OF_THREE = TaskHistory(attempts=0, max_attempts=3, retry=PLAIN, agent="a")
LAST_OF_THREE = replace(FIRST_OF_THREE, attempts=2)
FAILED_ONCE = (FailedRun("a", "failed"),)

RAISED = Raised("error", "it broke", "ValueError")
REFUSED = Raised("auth_failure", "no such key", "PermissionError")

# A notice after the first failed run; priority or dead letter after the second.
TELLS = replace(FIRST_OF_THREE, retry=replace(PLAIN, escalate_after=1))
LIFTS = replace(
    FIRST_OF_THREE,
    attempts=1,
    failures=FAILED_ONCE,
    retry=replace(PLAIN, escalate_after=2, escalate=Escalation.PRIORITY),
)
BURIES = replace(
    FIRST_OF_THREE,
    attempts=1,
    failures=FAILED_ONCE,
    max_attempts=9,
    retry=replace(PLAIN, escalate_after=2, escalate=Escalation.DEAD_LETTER),
)

CASES: dict[str, tuple[TaskHistory, Result, Verdict]] = {
    "returned": (
        FIRST_OF_THREE,
        Returned({"hello": "world"}),
        Verdict(LifecycleEvent.COMPLETE, "completed"),
    ),
    "returned on the last attempt": (
        LAST_OF_THREE,
        Returned(),
        Verdict(LifecycleEvent.COMPLETE, "completed"),
    ),
    "raised": (
        FIRST_OF_THREE,
        RAISED,
        Verdict(LifecycleEvent.RETRY, "failed", "error", "it broke", wait_seconds=10.0),
    ),
    "raised, with a rule to tell of it": (
        TELLS,
        RAISED,
        Verdict(
            LifecycleEvent.RETRY,
            "failed",
            "error",
            "it broke",
            wait_seconds=10.0,
            escalation=Escalation.EVENT,
        ),
    ),
    "raised, and told of before": (
        replace(TELLS, attempts=1, failures=FAILED_ONCE),
        RAISED,
        Verdict(LifecycleEvent.RETRY, "failed", "error", "it broke", wait_seconds=10.0),
    ),
    "raised, with a rule to hurry": (
        LIFTS,
        RAISED,
        Verdict(
            LifecycleEvent.RETRY,
            "failed",
            "error",
            "it broke",
            wait_seconds=10.0,
            escalation=Escalation.PRIORITY,
        ),
    ),
    "raised, with a rule to give up early": (
        BURIES,
        RAISED,
        Verdict(
            LifecycleEvent.DEAD_LETTER,
            "failed",
            "error",
            "it broke",
            escalation=Escalation.DEAD_LETTER,
        ),
    ),
    "raised once since it was revived, with a rule to give up early": (
        replace(BURIES, attempts=4, failures=()),
        RAISED,
        Verdict(LifecycleEvent.RETRY, "failed", "error", "it broke", wait_seconds=10.0),
    ),
    "ran into a budget": (
        FIRST_OF_THREE,
        StoppedByBudget("$1 of $1"),
        Verdict(LifecycleEvent.SUSPEND, "suspended", "budget_exceeded", "$1 of $1", spent=False),
    ),
    "waits for others": (
        LAST_OF_THREE,
        WaitingForTasks((UUID(int=1),)),
        Verdict(LifecycleEvent.SUSPEND, "suspended", spent=False),
    ),
    "raised on the last attempt": (
        LAST_OF_THREE,
        RAISED,
        Verdict(LifecycleEvent.DEAD_LETTER, "failed", "error", "it broke"),
    ),
    "raised what the policy never retries": (
        FIRST_OF_THREE,
        REFUSED,
        Verdict(LifecycleEvent.DEAD_LETTER, "failed", "auth_failure", "no such key"),
    ),
    "raised what the policy does not know": (
        FIRST_OF_THREE,
        replace(RAISED, error_class="no_handler"),
        Verdict(LifecycleEvent.DEAD_LETTER, "failed", "no_handler", "it broke"),
    ),
    "raised an exception the policy names": (
        replace(FIRST_OF_THREE, retry=replace(PLAIN, retry_on=("ValueError",))),
        RAISED,
        Verdict(LifecycleEvent.RETRY, "failed", "error", "it broke", wait_seconds=10.0),
    ),
    "raised an exception the policy refuses": (
        replace(FIRST_OF_THREE, retry=replace(PLAIN, no_retry_on=("ValueError",))),
        RAISED,
        Verdict(LifecycleEvent.DEAD_LETTER, "failed", "error", "it broke"),
    ),
    "asked for a retry against the policy": (
        FIRST_OF_THREE,
        replace(REFUSED, retryable=True),
        Verdict(LifecycleEvent.RETRY, "failed", "auth_failure", "no such key", wait_seconds=10.0),
    ),
    "asked for a retry at its own time": (
        FIRST_OF_THREE,
        replace(RAISED, retryable=True, wait_seconds=77.0),
        Verdict(LifecycleEvent.RETRY, "failed", "error", "it broke", wait_seconds=77.0),
    ),
    "asked for a retry without attempts left": (
        LAST_OF_THREE,
        replace(RAISED, retryable=True),
        Verdict(LifecycleEvent.DEAD_LETTER, "failed", "error", "it broke"),
    ),
    "gave up for good": (
        FIRST_OF_THREE,
        replace(RAISED, retryable=False),
        Verdict(LifecycleEvent.DEAD_LETTER, "failed", "error", "it broke"),
    ),
    "timed out": (
        FIRST_OF_THREE,
        TimedOut(by_plan=False),
        Verdict(LifecycleEvent.RETRY, "timeout", "timeout", "Timeout", wait_seconds=10.0),
    ),
    "timed out on the last attempt": (
        LAST_OF_THREE,
        TimedOut(by_plan=False),
        Verdict(LifecycleEvent.DEAD_LETTER, "timeout", "timeout", "Timeout"),
    ),
    "timed out when the policy does not retry that": (
        replace(FIRST_OF_THREE, retry=replace(PLAIN, retry_on=("error",))),
        TimedOut(by_plan=False),
        Verdict(LifecycleEvent.DEAD_LETTER, "timeout", "timeout", "Timeout"),
    ),
    "timed out by the plan": (
        FIRST_OF_THREE,
        TimedOut(by_plan=True),
        Verdict(LifecycleEvent.DEAD_LETTER, "plan_timeout", "plan_timeout", "Timeout"),
    ),
    "stopped": (
        FIRST_OF_THREE,
        StoppedByCancel(),
        Verdict(LifecycleEvent.CANCEL, "cancelled", "cancelled"),
    ),
    "interrupted": (
        FIRST_OF_THREE,
        Interrupted(),
        Verdict(
            LifecycleEvent.HAND_BACK, "interrupted", message="shutdown", spent=False, billed=False
        ),
    ),
    "interrupted on the last attempt": (
        LAST_OF_THREE,
        Interrupted("deploy"),
        Verdict(
            LifecycleEvent.HAND_BACK, "interrupted", message="deploy", spent=False, billed=False
        ),
    ),
    "busy agent on the last attempt": (
        LAST_OF_THREE,
        Busy(),
        Verdict(
            LifecycleEvent.HAND_BACK,
            "busy",
            message="the agent was busy",
            spent=False,
            billed=False,
            to_back=True,
        ),
    ),
    "released by the owner's agent": (
        LAST_OF_THREE,
        Released(),
        Verdict(LifecycleEvent.HAND_BACK, "released", message="shutdown", spent=False),
    ),
    "released too often": (
        FIRST_OF_THREE,
        Released(earlier=3),
        Verdict(
            LifecycleEvent.RETRY,
            "released",
            "released_too_often",
            "agents have given the task back 4 times",
            wait_seconds=10.0,
        ),
    ),
    "released too often on the last attempt": (
        LAST_OF_THREE,
        Released(earlier=3),
        Verdict(
            LifecycleEvent.DEAD_LETTER,
            "released",
            "released_too_often",
            "agents have given the task back 4 times",
        ),
    ),
    "deferred": (
        FIRST_OF_THREE,
        Deferred(120.0),
        Verdict(LifecycleEvent.RETRY, "deferred", "rate_limit", wait_seconds=120.0, spent=False),
    ),
    "deferred on the last attempt": (
        LAST_OF_THREE,
        Deferred(5.0, "busy"),
        Verdict(LifecycleEvent.RETRY, "deferred", "busy", wait_seconds=5.0, spent=False),
    ),
    "never started": (
        LAST_OF_THREE,
        Expired(),
        Verdict(
            LifecycleEvent.HAND_BACK, "expired", message="claim_expired", spent=False, billed=False
        ),
    ),
    "died": (
        FIRST_OF_THREE,
        Died(),
        Verdict(LifecycleEvent.RETRY, "crash", "crash", "the run died under a live worker"),
    ),
    "died on the last attempt": (
        LAST_OF_THREE,
        Died(),
        Verdict(LifecycleEvent.DEAD_LETTER, "crash", "crash", "the run died under a live worker"),
    ),
    "used too much memory": (
        FIRST_OF_THREE,
        Died(out_of_memory=True),
        Verdict(LifecycleEvent.DEAD_LETTER, "out_of_memory", "out_of_memory", MEMORY_EXCEEDED),
    ),
    "used too much memory under a policy that retries that": (
        replace(FIRST_OF_THREE, retry=replace(PLAIN, retry_on=("out_of_memory",))),
        Died(out_of_memory=True),
        Verdict(
            LifecycleEvent.RETRY,
            "out_of_memory",
            "out_of_memory",
            MEMORY_EXCEEDED,
            wait_seconds=10.0,
        ),
    ),
    "lost": (
        FIRST_OF_THREE,
        Lost(),
        Verdict(LifecycleEvent.RETRY, "worker_lost", "crash", "heartbeat_timeout", billed=False),
    ),
    "lost on the last attempt": (
        LAST_OF_THREE,
        Lost(),
        Verdict(
            LifecycleEvent.DEAD_LETTER, "worker_lost", "crash", "heartbeat_timeout", billed=False
        ),
    ),
    "lost when the policy does not retry crashes": (
        replace(FIRST_OF_THREE, retry=replace(PLAIN, retry_on=("error",))),
        Lost(),
        Verdict(
            LifecycleEvent.DEAD_LETTER, "worker_lost", "crash", "heartbeat_timeout", billed=False
        ),
    ),
}

RESULTS = st.one_of(
    st.builds(Returned),
    st.builds(
        Raised,
        error_class=st.sampled_from(["error", "rate_limit", "auth_failure", "no_handler"]),
        message=st.just("it broke"),
        retryable=st.sampled_from([None, True, False]),
        wait_seconds=st.none() | st.floats(min_value=0, max_value=3600),
    ),
    st.builds(TimedOut, by_plan=st.booleans()),
    st.builds(StoppedByCancel),
    st.builds(Interrupted),
    st.builds(Busy),
    st.builds(Deferred, wait_seconds=st.floats(min_value=0, max_value=3600)),
    st.builds(Expired),
    st.builds(Died),
    st.builds(Lost),
)
SPENT_OUTCOMES = ["failed", "timeout", "crash", "worker_lost"]
STANDINGS = st.builds(
    TaskHistory,
    attempts=st.integers(min_value=0, max_value=6),
    max_attempts=st.integers(min_value=1, max_value=6),
    retry=st.builds(RetryRules, strategy=st.sampled_from(Strategy), jitter=st.booleans()),
    agent=st.sampled_from("abc"),
    failures=st.lists(
        st.builds(FailedRun, agent=st.sampled_from("abc"), outcome=st.sampled_from(SPENT_OUTCOMES)),
        max_size=5,
    ).map(tuple),
)
CHANCES = st.floats(min_value=0, max_value=1, exclude_max=True)


@pytest.mark.parametrize("case", CASES)
def test_each_result_has_its_verdict(case: str) -> None:
    standing, result, verdict = CASES[case]

    assert judge(standing, result, 0.5) == verdict


def test_the_cases_include_every_result() -> None:
    assert {type(result) for _, result, _ in CASES.values()} == set(get_args(Result))


@given(STANDINGS, RESULTS, CHANCES)
def test_every_verdict_is_a_move_a_held_task_can_make(
    standing: TaskHistory, result: Result, chance: float
) -> None:
    held = State.CLAIMED if isinstance(result, Expired) else State.RUNNING

    assert held in MOVES[judge(standing, result, chance).event].sources


@given(STANDINGS, RESULTS, CHANCES)
def test_a_spent_attempt_is_retried_only_within_the_limit(
    standing: TaskHistory, result: Result, chance: float
) -> None:
    verdict = judge(standing, result, chance)

    if verdict.event is LifecycleEvent.RETRY and verdict.spent:
        assert standing.attempts + 1 < standing.max_attempts


@given(STANDINGS, RESULTS, CHANCES)
def test_results_that_are_the_services_fault_are_never_billed(
    standing: TaskHistory, result: Result, chance: float
) -> None:
    ours = isinstance(result, Lost | Interrupted | Busy | Expired)

    assert judge(standing, result, chance).billed is not ours


@given(STANDINGS, RESULTS, CHANCES)
def test_only_outcomes_without_fault_of_the_task_spend_no_attempt(
    standing: TaskHistory, result: Result, chance: float
) -> None:
    blameless = isinstance(result, Interrupted | Busy | Expired | Deferred)

    assert judge(standing, result, chance).spent is not blameless


@given(STANDINGS, RESULTS, CHANCES)
def test_a_poisoned_task_is_always_dead_lettered(
    standing: TaskHistory, result: Result, chance: float
) -> None:
    verdict = judge(standing, result, chance)

    assert not verdict.poison or verdict.event is LifecycleEvent.DEAD_LETTER


@given(STANDINGS, RESULTS, CHANCES)
def test_every_dead_letter_has_a_reason(
    standing: TaskHistory, result: Result, chance: float
) -> None:
    verdict = judge(standing, result, chance)

    assert verdict.event is not LifecycleEvent.DEAD_LETTER or (verdict.reason and verdict.message)


@pytest.mark.parametrize("result", [Died(), Lost()])
def test_the_first_crash_is_retried_at_once(result: Result) -> None:
    after_a_failure = replace(FIRST_OF_THREE, attempts=1, failures=[FailedRun("a", "failed")])

    assert judge(FIRST_OF_THREE, result, 0.5).wait_seconds == 0.0
    assert judge(after_a_failure, result, 0.5).wait_seconds == 0.0


@pytest.mark.parametrize("result", [Died(), Lost()])
@pytest.mark.parametrize("earlier", ["crash", "worker_lost"])
def test_a_second_crash_waits_by_the_policy(result: Result, earlier: str) -> None:
    again = replace(FIRST_OF_THREE, attempts=1, failures=[FailedRun("a", earlier)])

    verdict = judge(again, result, 0.5)

    assert verdict.event is LifecycleEvent.RETRY
    assert verdict.wait_seconds == 10.0


def test_the_wait_grows_with_the_attempts_made() -> None:
    growing = replace(FIRST_OF_THREE, retry=RetryRules(jitter=False), max_attempts=9)

    waits = [judge(replace(growing, attempts=made), RAISED, 0.5).wait_seconds for made in range(4)]

    assert waits == [10, 20, 40, 80]


def test_jitter_spreads_the_wait() -> None:
    spread = replace(FIRST_OF_THREE, retry=RetryRules(Strategy.FIXED))

    waits = [judge(spread, RAISED, chance).wait_seconds for chance in (0.0, 0.5)]

    assert waits == [5, 10]


def test_a_wait_the_handler_asked_for_may_exceed_the_cap() -> None:
    capped = replace(FIRST_OF_THREE, retry=replace(PLAIN, max_delay_sec=60))
    raised = replace(RAISED, retryable=True, wait_seconds=3600.0)

    assert judge(capped, raised, 0.5).wait_seconds == 3600.0


def failures(*runs: str) -> list[FailedRun]:
    """Earlier failures, each written as `agent outcome`."""
    return [FailedRun(*run.split()) for run in runs]


@pytest.mark.parametrize(
    ("failed_runs", "attempts", "poison"),
    [
        # Two agents and three attempts.
        (["a failed", "b failed", "a failed"], 3, True),
        (["a failed", "b timeout", "c failed"], 3, True),
        (["a failed", "a failed", "a failed"], 3, False),
        (["a failed", "b failed"], 2, False),
        (["a failed", "b failed", "a failed"], 2, False),
        # Two runs that killed themselves, on two workers.
        (["a crash", "b crash"], 2, True),
        (["a crash", "a crash"], 2, False),
        (["a crash", "b failed"], 2, False),
        (["a crash", "b failed", "b crash"], 3, True),
        (["a crash"], 1, False),
        # A worker killed from outside does not count towards poison.
        (["a worker_lost", "b worker_lost"], 2, False),
        (["a worker_lost", "b worker_lost", "c worker_lost"], 3, False),
        (["a crash", "b worker_lost"], 2, False),
        (["a failed", "b worker_lost", "a failed"], 3, False),
        (["a failed", "b worker_lost", "b failed"], 3, False),
        (["a failed", "b worker_lost", "b failed", "a failed"], 4, True),
        # Neither does whatever spent no attempt.
        (["a interrupted", "b expired", "c deferred"], 3, False),
        (["a failed", "b interrupted", "a failed", "b expired"], 4, False),
        ([], 0, False),
    ],
)
def test_poison_needs_crashes_on_several_workers(
    failed_runs: list[str], attempts: int, *, poison: bool
) -> None:
    assert is_poison(failures(*failed_runs), attempts) is poison


def test_a_second_crash_on_another_worker_dead_letters_the_task() -> None:
    standing = replace(FIRST_OF_THREE, attempts=1, agent="b", failures=failures("a crash"))

    verdict = judge(standing, Died(), 0.5)

    assert verdict.event is LifecycleEvent.DEAD_LETTER
    assert verdict.poison
    assert verdict.reason == "crash"


def test_a_second_crash_on_the_same_worker_is_retried() -> None:
    standing = replace(FIRST_OF_THREE, attempts=1, agent="a", failures=failures("a crash"))

    verdict = judge(standing, Died(), 0.5)

    assert verdict.event is LifecycleEvent.RETRY
    assert not verdict.poison


@given(st.lists(st.sampled_from("abcdef"), max_size=8), st.sampled_from("abcdef"))
def test_a_worker_killed_from_outside_does_not_count_towards_poison(
    earlier: list[str], last: str
) -> None:
    lost = [FailedRun(agent, "worker_lost") for agent in earlier]
    standing = TaskHistory(len(lost), max_attempts=99, retry=PLAIN, agent=last, failures=lost)

    verdict = judge(standing, Lost(), 0.5)

    assert verdict.event is LifecycleEvent.RETRY
    assert not verdict.poison


def test_a_task_that_fails_on_all_workers_is_dead_lettered_as_poison() -> None:
    standing = replace(LAST_OF_THREE, failures=failures("a failed", "b failed"))

    verdict = judge(standing, RAISED, 0.5)

    assert verdict.event is LifecycleEvent.DEAD_LETTER
    assert verdict.poison


def test_poison_ends_a_task_that_has_attempts_left() -> None:
    standing = TaskHistory(
        2, max_attempts=10, retry=PLAIN, agent="a", failures=failures("a failed", "b failed")
    )

    assert judge(standing, RAISED, 0.5).event is LifecycleEvent.DEAD_LETTER


def test_a_run_that_asks_for_another_one_is_limited_by_its_attempts_alone() -> None:
    asked = replace(RAISED, retryable=True, wait_seconds=60.0)
    standing = TaskHistory(
        2, max_attempts=4, retry=PLAIN, agent="a", failures=failures("a failed", "b failed")
    )
    last = replace(standing, attempts=3, failures=failures("a failed", "b failed", "a failed"))

    unreached = Raised("agent_unreachable", "no answer", retryable=True)
    assert judge(standing, unreached, 0.5).event is LifecycleEvent.DEAD_LETTER
    assert judge(standing, asked, 0.5).event is LifecycleEvent.RETRY
    assert judge(standing, asked, 0.5).wait_seconds == 60.0
    assert judge(last, asked, 0.5).event is LifecycleEvent.DEAD_LETTER
    assert judge(last, asked, 0.5).poison


def test_failures_on_one_worker_do_not_make_a_task_poison() -> None:
    standing = TaskHistory(
        4, max_attempts=10, retry=PLAIN, agent="a", failures=failures(*["a failed"] * 4)
    )

    assert judge(standing, RAISED, 0.5).event is LifecycleEvent.RETRY
