"""The reader of an explanation, whose advice names commands that work for this person."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Audience:
    """The reader of an explanation: the task's owner, an operator, or both."""

    is_owner: bool = True
    is_operator: bool = False

    @property
    def whose(self) -> str:
        """How a message speaks of what belongs to the task's owner."""
        return "your" if self.is_owner else "the user's"

    def advice_for_owner(self, act: str, command: str) -> str:
        """Return the advice to do what only the task's owner can do.

        >>> OWNER.advice_for_owner("lower its timeout", "overnight edit --timeout")
        'lower its timeout with `overnight edit --timeout`'
        >>> OPERATOR.advice_for_owner("lower its timeout", "overnight edit --timeout")
        'its owner can lower its timeout with `overnight edit --timeout`'
        """
        advice = f"{act} with `{command}`"
        return advice if self.is_owner else f"its owner can {advice}"

    def advice_for_operator(self, act: str, command: str) -> str:
        """Return the advice to do what only an operator can do.

        >>> OPERATOR.advice_for_operator("raise the limit", "overnight user limits")
        'raise the limit with `overnight user limits`'
        >>> OWNER.advice_for_operator("raise the limit", "overnight user limits")
        'ask an operator to raise the limit'
        """
        return f"{act} with `{command}`" if self.is_operator else f"ask an operator to {act}"


OWNER = Audience()
OPERATOR = Audience(is_owner=False, is_operator=True)
