"""Checks the text format of Prometheus as `promtool check metrics` does."""

import re
from collections.abc import Iterator

NAME = "[a-zA-Z_:][a-zA-Z0-9_:]*"
LABELS = r'\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*\}'
SAMPLE = re.compile(rf"({NAME})({LABELS})? (-?[0-9.eE+-]+|NaN|[+-]Inf)")
COMMENT = re.compile(rf"# (HELP|TYPE) ({NAME}) (.+)")
KINDS = ("counter", "gauge")


def problems(text: str) -> Iterator[str]:
    """Yield what is wrong with a text."""
    if not text.endswith("\n"):
        yield "the last line does not end"
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    seen: set[str] = set()
    current = None
    for line in text.splitlines():
        if comment := COMMENT.fullmatch(line):
            what, current, value = comment.groups()
            if what == "HELP":
                helped.add(current)
            elif current in kinds or value not in KINDS:
                yield f"TYPE twice, or no type: {line}"
            else:
                kinds[current] = value
            continue
        sample = SAMPLE.fullmatch(line)
        if sample is None:
            yield f"no sample: {line}"
            continue
        name, labels, _ = sample.groups()
        if name != current or name not in kinds or name not in helped:
            yield f"not after its HELP and TYPE: {line}"
        if (kinds.get(name) == "counter") != name.endswith("_total"):
            yield f"a counter ends in _total, nothing else does: {line}"
        if f"{name}{labels}" in seen:
            yield f"twice: {line}"
        seen.add(f"{name}{labels}")
