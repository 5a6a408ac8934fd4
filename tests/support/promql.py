"""Evaluates the part of PromQL that our alert rules and panels use, over one or two scrapes.

`increase(x[15m])` is what the second scrape adds to the first one, whatever the range; `rate` is
the same. Operators match samples with equal labels, or all samples with one that has none.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.support.metrics import Scrape

Labels = frozenset[tuple[str, str]]
Vector = Mapping[Labels, float]
Value = float | Vector
TOKEN = re.compile(
    r'\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<text>"[^"]*")|(?P<range>\[\d+[smhd]\])'
    r"|(?P<name>[a-zA-Z_]\w*)|(?P<sign>=~|<=|>=|==|[-+*/<>=(){},]))"
)
COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": lambda left, right: left > right,
    "<": lambda left, right: left < right,
    ">=": lambda left, right: left >= right,
    "<=": lambda left, right: left <= right,
    "==": lambda left, right: left == right,
}
NO_LABELS: Labels = frozenset()


@dataclass(frozen=True)
class Parsed:
    """The names that an expression reads, each with the labels that it selects or groups by."""

    selected: tuple[tuple[str, frozenset[str]], ...]
    grouped: frozenset[str]


def parse(expression: str) -> Parsed:
    """Return what an expression reads; raise ValueError if it is not understood."""
    reader = _Reader(expression, Scrape([], {}), None)
    reader.whole()
    return Parsed(tuple(reader.selected), frozenset(reader.grouped))


def evaluate(expression: str, now: Scrape, before: Scrape | None = None) -> Value:
    """Return the value of an expression; an alert fires for each sample of it."""
    return _Reader(expression, now, before).whole()


class _Reader:
    """Reads an expression from left to right and evaluates it on the way."""

    def __init__(self, expression: str, now: Scrape, before: Scrape | None) -> None:
        self._tokens: list[str] = []
        self._now, self._before = now, before
        self.selected: list[tuple[str, frozenset[str]]] = []
        self.grouped: set[str] = set()
        at = 0
        expression = expression.strip()
        while at < len(expression):
            found = TOKEN.match(expression, at)
            if found is None:
                raise ValueError(f"not understood: {expression[at:]!r}")
            self._tokens.append(found[0].strip())
            at = found.end()

    def whole(self) -> Value:
        """Return the value of the whole expression."""
        value = self._condition()
        if self._tokens:
            raise ValueError(f"not understood: {' '.join(self._tokens)}")
        return value

    def _take(self, wanted: str | None = None) -> str:
        if not self._tokens or (wanted is not None and self._tokens[0] != wanted):
            raise ValueError(f"expected {wanted or 'more'} before {' '.join(self._tokens)!r}")
        return self._tokens.pop(0)

    def _next_is(self, *signs: str) -> bool:
        return bool(self._tokens) and self._tokens[0] in signs

    def _condition(self) -> Value:
        value = self._comparison()
        while self._next_is("and", "or"):
            is_or, left = self._take() == "or", _vector(value)
            other = _vector(self._comparison())
            value = {**other, **left} if is_or else _in_both(left, other)
        return value

    def _comparison(self) -> Value:
        left = self._product()
        if not self._next_is(*COMPARE):
            return left
        holds = COMPARE[self._take()]
        right = self._product()
        if not isinstance(right, float):
            raise TypeError("a comparison needs a number on its right side")
        return {labels: number for labels, number in _vector(left).items() if holds(number, right)}

    def _product(self) -> Value:
        left = self._operand()
        while self._next_is("/", "*"):
            divides, right = self._take() == "/", self._operand()
            left = _combine(left, right, divides=divides)
        return left

    def _operand(self) -> Value:
        token = self._take()
        if token[0].isdigit():
            return float(token)
        if token == "(":
            value = self._condition()
            self._take(")")
            return value
        if token in {"sum", "max"}:
            return self._aggregate(sum if token == "sum" else max)
        if token == "absent":
            value = self._condition_in_parentheses()
            return {} if _vector(value) else {NO_LABELS: 1.0}
        if token in {"increase", "rate"}:
            return self._increase()
        return self._select(token, self._now)

    def _condition_in_parentheses(self) -> Value:
        self._take("(")
        value = self._condition()
        self._take(")")
        return value

    def _aggregate(self, combine: Callable[[list[float]], float]) -> Vector:
        names: list[str] = []
        if self._next_is("by"):
            self._take()
            self._take("(")
            while not self._next_is(")"):
                names.append(self._take())
                if self._next_is(","):
                    self._take()
            self._take(")")
            self.grouped.update(names)
        groups: dict[Labels, list[float]] = {}
        for labels, number in _vector(self._condition_in_parentheses()).items():
            kept = frozenset((name, value) for name, value in labels if name in names)
            groups.setdefault(kept, []).append(number)
        return {labels: combine(numbers) for labels, numbers in groups.items()}

    def _increase(self) -> Vector:
        self._take("(")
        name = self._take()
        rest = list(self._tokens)
        now = self._select(name, self._now)
        self._tokens, behind = rest, self._tokens
        before = {} if self._before is None else self._select(name, self._before)
        self._tokens = behind
        if not self._take().startswith("["):
            raise ValueError("an increase needs a range")
        self._take(")")
        return {labels: number - before.get(labels, 0.0) for labels, number in now.items()}

    def _select(self, name: str, scrape: Scrape) -> Vector:
        matchers: list[tuple[str, str, str]] = []
        if self._next_is("{"):
            self._take()
            while not self._next_is("}"):
                matchers.append((self._take(), self._take(), self._take().strip('"')))
                if self._next_is(","):
                    self._take()
            self._take("}")
        self.selected.append((name, frozenset(label for label, _, _ in matchers)))
        return {
            frozenset(labels.items()): value
            for sample, labels, value in scrape.samples
            if sample == name
            and all(_matches(labels.get(label, ""), sign, text) for label, sign, text in matchers)
        }


def _in_both(left: Vector, other: Vector) -> Vector:
    return {
        labels: number
        for labels, number in left.items()
        if labels in other or set(other) == {NO_LABELS}
    }


def _matches(value: str, sign: str, text: str) -> bool:
    if sign == "=":
        return value == text
    if sign == "=~":
        return re.fullmatch(text, value) is not None
    raise ValueError(f"no matcher: {sign}")


def _vector(value: Value) -> Vector:
    return {NO_LABELS: value} if isinstance(value, float) else value


def _combine(left: Value, right: Value, *, divides: bool) -> Vector:
    numbers, others = _vector(left), _vector(right)
    combined: dict[Labels, float] = {}
    for labels, number in numbers.items():
        other = others.get(labels, others.get(NO_LABELS))
        if other is not None and not (divides and other == 0):
            combined[labels] = number / other if divides else number * other
    return combined
