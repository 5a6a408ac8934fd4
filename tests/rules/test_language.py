"""Plain language: retired words stay away, modules have plain names, the glossary is in use."""

import re
from itertools import chain
from pathlib import Path

from tests.rules.sources import as_lines, files, modules, read

PRODUCT = ("app", "workers", "overnight", "benchmarks", "beat_schedule.py", "scripts")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "examples", "Makefile")
# The word to use instead of each stands in the glossary.
RETIRED = re.compile(
    r"\b(houses?|nudg\w*|linger\w*|obituar\w*|bur(y|ies|ied)|ears?|patience|rehears\w*|lets? in"
    r"|estates?|ladder|bells?|sharpen\w*|parked|furnish\w*)\b",
    re.IGNORECASE,
)
# The changelog tells upgraders what the renamed things were called before.
CHANGELOG = Path("docs/changelog.md")
GERUND = re.compile(r"(?:^|_)(?!feed)[a-z]{2,}(?:ing|ed)(?:_|$)")
# Words of the field: a noun, or an adjective before a noun.
PLAIN_MODULES = {
    *("testing", "billing_months", "embedded", "result_mapping"),
    *("batched_statements", "guarded_program", "started_tasks", "working_directory"),
    "lock_claimed_task",
}
# Terms that a reader needs; the glossary has more.
KEY_TERMS = """
task, type, payload, handler, dag, edge, state, status, move, event, priority,
run, attempt, claim, epoch, claim's token, lease, heartbeat, verdict, settle, stale result,
hand back, retry, dead letter, poison, revive, bundle, idle listener, row-level security,
simulation, user, plan, lane, gate, lock key, slot, agent, pool, skipped by pool, capability,
ledger, cycle,
deployment, local stack, home, dispatcher, wake-up, sweep, reaper, promoter, beat, idempotency key
"""


def test_no_product_text_or_page_has_a_retired_word() -> None:
    retired = [
        f"{path}:{number}: {line.strip()[:80]}"
        for path in chain(files(*PRODUCT), files(*PAGES))
        for number, line in enumerate(read(path).splitlines(), start=1)
        if RETIRED.search(line) and not (path == CHANGELOG and line.startswith("|"))
    ]

    assert not retired, as_lines(retired)


def test_no_module_is_named_by_a_gerund_or_participle() -> None:
    names = {path.stem: path for path, _ in modules("app", "workers", "overnight", "benchmarks")}
    gerunds = [str(path) for name, path in names.items() if GERUND.search(name)]

    assert not [path for path in gerunds if Path(path).stem not in PLAIN_MODULES], as_lines(gerunds)
    assert not PLAIN_MODULES - set(names), "modules on the list that no longer exist"


def test_every_term_of_the_glossary_is_defined_once_and_used() -> None:
    glossary = read(Path("docs/glossary.md"))
    terms = [term.lower() for term in re.findall(r"^- \*\*(.+?)\*\*: \S", glossary, re.MULTILINE)]
    texts = " ".join(
        " ".join(read(path).lower().split())
        for path in files("app", "workers", "overnight", "docs")
        if path.name not in ("glossary.md", "changelog.md")
    )
    unused = [term for term in terms if term not in texts and term.replace(" ", "_") not in texts]

    assert len(terms) == len(set(terms))
    assert {term.strip() for term in KEY_TERMS.split(",")} <= set(terms)
    assert not unused, as_lines(unused)
