"""Mutants that can still be made, told by tests that still exist, and judged by what they name."""

import importlib

import pytest

from tests.chaos.biased import BIASES
from tests.chaos.mutants import failures, judge_chaos, judge_tests, table
from tests.chaos.safeguards import COMPANIONS, MUTANTS, Edit, Mutant
from tests.support.invariants import INVARIANTS
from tests.support.workers import ROOT

IN_CHAOS = [
    "the lane's lock in the gate",
    "the fence: epoch and token of a settle",
    "the state a start expects",
    "the lane's lock that makes parents take turns",
    "the ledger's key",
]
LEDGER, *_ = (one for one in MUTANTS if one.lost == "the ledger's key")
TEST = "tests/integration/test_ledger_key.py::test_a_run_recorded_twice_is_charged_once"


def edits() -> set[Edit]:
    """Return every edit, of safeguards and of what chaos also does without."""
    lost = {edit for one in MUTANTS for edit in (one.edit, *one.also_without.values())}
    return lost | {edit for companions in COMPANIONS.values() for edit in companions}


@pytest.mark.parametrize("edit", sorted(edits()), ids=lambda edit: edit[0])
def test_what_a_mutant_loses_is_there_once(edit: Edit) -> None:
    place, old, new = edit

    assert (ROOT / place).read_text().count(old) == 1
    assert old != new


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.lost)
def test_a_mutant_is_told_by_tests_that_exist(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests:
        place, _, name = test.partition("::")
        module = importlib.import_module(place.removesuffix(".py").replace("/", "."))
        assert hasattr(module, name)


def test_the_safeguards_of_the_promises_are_all_shown_to_chaos() -> None:
    assert [one.lost for one in MUTANTS if one.chaos] == IN_CHAOS


def test_every_tilt_of_chaos_is_known() -> None:
    assert {one.bias for one in MUTANTS} == set(BIASES) == set(COMPANIONS)


def test_an_invariant_that_a_mutant_names_exists() -> None:
    known = {one.code for one in INVARIANTS}
    named = {word for one in MUTANTS for word in one.chaos if len(word) == 3}

    assert named <= known


def test_the_failures_are_read_from_what_pytest_says() -> None:
    said = (
        "FAILED tests/a.py::test_one[forged token] - AssertionError: assert True is False\n"
        "ERROR tests/a.py::test_two - a fixture broke\n"
        "FAILED tests/a.py::test_three\n"
        "1 failed\n"
    )

    assert failures(said) == {
        "tests/a.py::test_one": "AssertionError: assert True is False",
        "tests/a.py::test_three": "",
    }


@pytest.mark.parametrize(
    ("red", "seen"),
    [
        ({TEST: "AssertionError: I08, an attempt that ran"}, True),
        ({TEST: "OperationalError: server closed the connection"}, False),
        ({"tests/integration/test_start.py::test_another": "I08"}, False),
        ({}, False),
    ],
    ids=["for its reason", "for another reason", "another test", "green"],
)
def test_only_the_named_test_with_its_reason_shows_a_mutant(
    red: dict[str, str], *, seen: bool
) -> None:
    assert judge_tests(LEDGER, red).seen is seen


@pytest.mark.parametrize(
    ("red", "seen"),
    [
        ({"not drained within 45 s": "12 tasks", "invariants": "I04, …\nI08, …"}, True),
        ({"not drained within 45 s": "12 tasks"}, False),
        ({"invariants": "I04, …"}, False),
        ({}, False),
    ],
    ids=["a named finding", "too slow", "another finding", "green"],
)
def test_only_a_named_finding_of_chaos_shows_a_mutant(red: dict[str, str], *, seen: bool) -> None:
    assert judge_chaos(LEDGER, red).seen is seen


def test_the_table_says_what_turned_red() -> None:
    sights = [
        judge_tests(LEDGER, {TEST: "I08, charged twice"}),
        judge_chaos(LEDGER, {"not drained within 45 s": "12 tasks"}),
    ]

    _, first, second = table(sights).splitlines()

    assert first.startswith("the ledger's key ")
    assert first.endswith("seen    test_a_run_recorded_twice_is_charged_once: I08, charged twice")
    assert second.startswith("the ledger's key, the fence, the worker's own clock  chaos")
    assert "MISSED" in second
