"""Budgets: their order, and the first that cannot pay for a run."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overnight.testing import MemoryContext
from overnight_server.domain.budgets import (
    Budget,
    BudgetShortage,
    RemainingBudgets,
    check_budget,
    next_cost,
)
from overnight_server.domain.claims import FailedRun
from overnight_server.domain.retry import Escalation, RetryRules
from overnight_server.domain.verdicts import is_poison

ONE, TWO = Decimal(1), Decimal(2)
amounts = st.one_of(st.none(), st.decimals(-5, 5, places=2))


def test_budgets_are_checked_in_the_order_task_graph_agent_night() -> None:
    purse = RemainingBudgets(task=ONE, dag=ONE, agent=ONE, night=ONE)

    asked = []
    for budget in Budget:
        shortage = check_budget(TWO, purse)
        assert shortage is not None
        asked.append(shortage.budget)
        purse = RemainingBudgets(**{**vars(purse), budget.value: None})

    assert asked == [Budget.TASK, Budget.DAG, Budget.AGENT, Budget.NIGHT]
    assert check_budget(TWO, purse) is None


def test_a_used_up_budget_pays_for_nothing_not_even_for_a_free_task() -> None:
    assert check_budget(Decimal(0), RemainingBudgets(night=Decimal(0))) == BudgetShortage(
        Budget.NIGHT, Decimal(0), Decimal(0)
    )


@given(st.decimals(0, 5, places=2), st.builds(RemainingBudgets, amounts, amounts, amounts, amounts))
def test_no_shortage_exactly_if_the_smallest_budget_can_pay(
    estimate: Decimal, purse: RemainingBudgets
) -> None:
    tightest = purse.least

    can_pay = tightest is None or (tightest > 0 and estimate <= tightest)

    assert (check_budget(estimate, purse) is None) == can_pay


@pytest.mark.parametrize(
    ("estimated", "ceiling", "spent", "expected"),
    [(None, None, 0, 0), (2, None, 9, 2), (2, 5, 4, 1), (None, 5, 1, 4), (2, 5, 9, 0)],
)
def test_the_expected_cost_is_the_estimate_within_the_ceiling(
    estimated: int | None, ceiling: int | None, spent: int, expected: int
) -> None:
    def money(amount: int | None) -> Decimal | None:
        return None if amount is None else Decimal(amount)

    assert next_cost(money(estimated), money(ceiling), Decimal(spent)) == expected


def test_an_escalation_applies_once_but_a_dead_letter_always() -> None:
    telling = RetryRules(escalate_after=2)
    burying = RetryRules(escalate_after=2, escalate=Escalation.DEAD_LETTER)

    assert [telling.escalation(n) for n in (1, 2, 3)] == [None, Escalation.EVENT, None]
    assert [burying.escalation(n) for n in (1, 2, 3)] == [
        None,
        Escalation.DEAD_LETTER,
        Escalation.DEAD_LETTER,
    ]
    assert RetryRules().escalation(99) is None


def test_the_policy_decides_what_is_poison() -> None:
    failures = [FailedRun("a", "failed"), FailedRun("a", "failed")]

    assert not is_poison(failures, 2)
    assert is_poison(failures, 2, RetryRules(poison_attempts=2, poison_distinct_agents=1))


def test_a_context_at_its_ceiling_asks_the_handler_to_end() -> None:
    context = MemoryContext(ceiling_usd=1.0)
    context.cost(0.75)
    assert (context.usd_left, context.stop_reason) == (0.25, None)

    context.cost(0.5)

    assert (context.usd_left, context.stop_reason) == (0.0, "budget")
    assert MemoryContext().usd_left is None


@pytest.mark.parametrize("usd", [-0.01, float("nan"), float("inf"), 1e9])
def test_a_cost_that_cannot_be_added_up_is_refused(usd: float) -> None:
    with pytest.raises(ValueError, match="a cost is from 0"):
        MemoryContext().cost(usd)
