"""Money: which budgets a run draws on, and the first of them that cannot pay for it."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum


class Budget(StrEnum):
    """The budgets a run draws on, in the order in which they are asked."""

    TASK = "task"
    DAG = "dag"
    AGENT = "agent"
    NIGHT = "night"


@dataclass(frozen=True)
class Purse:
    """What is left of each budget, spent and promised money taken off; None is no limit."""

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
        """What the tightest budget has left, or None if there is none."""
        return min((left for left in map(self.of, Budget) if left is not None), default=None)


@dataclass(frozen=True)
class Shortage:
    """The budget that cannot pay, what the run is thought to need, and what is left."""

    budget: Budget
    needed: Decimal
    left: Decimal


def next_cost(
    estimated: Decimal | None, ceiling: Decimal | None, spent: Decimal = Decimal(0)
) -> Decimal:
    """Return what a task's next run is thought to cost: its estimate, within its ceiling.

    The gate's SQL has the same function; a test holds the two together.

    >>> next_cost(Decimal(3), Decimal(5), spent=Decimal(4))
    Decimal('1')
    >>> next_cost(None, None)
    Decimal('0')
    """
    bounds = [estimated, None if ceiling is None else ceiling - spent]
    return max(min((one for one in bounds if one is not None), default=Decimal(0)), Decimal(0))


def check_budget(estimate: Decimal, purse: Purse) -> Shortage | None:
    """Return the first budget that cannot pay for a run, or None if all can.

    A budget that is used up pays for nothing, not even for a run that is thought to be free.

    >>> check_budget(Decimal(2), Purse(dag=Decimal(1), night=Decimal(0)))
    Shortage(budget=<Budget.DAG: 'dag'>, needed=Decimal('2'), left=Decimal('1'))
    """
    for budget in Budget:
        left = purse.of(budget)
        if left is not None and (left <= 0 or estimate > left):
            return Shortage(budget, estimate, left)
    return None
