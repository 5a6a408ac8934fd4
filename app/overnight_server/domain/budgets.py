"""Budgets: what is left of each, and the first one that cannot pay for a run."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from math import ceil

# The least that is offered to be added to a budget that is used up.
LEAST_RAISE_USD = 1.0


class Budget(StrEnum):
    """The budgets that pay for a run, in the order in which they are checked."""

    TASK = "task"
    DAG = "dag"
    AGENT = "agent"
    NIGHT = "night"


@dataclass(frozen=True)
class RemainingBudgets:
    """What is left of each budget after spent and reserved money; None means no limit."""

    task: Decimal | None = None
    dag: Decimal | None = None
    agent: Decimal | None = None
    night: Decimal | None = None

    def of(self, budget: Budget) -> Decimal | None:
        """Return what is left of one budget."""
        return {
            Budget.TASK: self.task,
            Budget.DAG: self.dag,
            Budget.AGENT: self.agent,
            Budget.NIGHT: self.night,
        }[budget]

    @property
    def least(self) -> Decimal | None:
        """What is left of the smallest budget; None without any."""
        return min((left for left in map(self.of, Budget) if left is not None), default=None)


@dataclass(frozen=True)
class BudgetShortage:
    """The budget that cannot pay, the expected cost of the run, and what is left."""

    budget: Budget
    needed: Decimal
    left: Decimal


def next_cost(
    estimated: Decimal | None, ceiling: Decimal | None, spent: Decimal = Decimal(0)
) -> Decimal:
    """Return the expected cost of a task's next run: its estimate, limited by its ceiling.

    The SQL function of the same name is equal; a test compares them.

    >>> next_cost(Decimal(3), Decimal(5), spent=Decimal(4))
    Decimal('1')
    >>> next_cost(None, None)
    Decimal('0')
    """
    bounds = [estimated, None if ceiling is None else ceiling - spent]
    return max(
        min((bound for bound in bounds if bound is not None), default=Decimal(0)), Decimal(0)
    )


def check_budget(estimate: Decimal, budgets: RemainingBudgets) -> BudgetShortage | None:
    """Return the first budget that cannot pay for a run, or None if all can.

    A budget that is used up pays for no run, not even for one that is expected to cost nothing.

    >>> check_budget(Decimal(2), RemainingBudgets(dag=Decimal(1), night=Decimal(0)))
    BudgetShortage(budget=<Budget.DAG: 'dag'>, needed=Decimal('2'), left=Decimal('1'))
    """
    for budget in Budget:
        left = budgets.of(budget)
        if left is not None and (left <= 0 or estimate > left):
            return BudgetShortage(budget, estimate, left)
    return None


def suggested_raise(needs_usd: float | None) -> float:
    """Return how much to offer to a task that asks for money: what its next run needs, in cents.

    >>> suggested_raise(2.391), suggested_raise(0.2), suggested_raise(None)
    (2.4, 1.0, 1.0)
    """
    return max(LEAST_RAISE_USD, ceil(round((needs_usd or 0.0) * 100, 6)) / 100)
