"""Every mutant can still be made, names existing tests, and is judged by their failures."""

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
    """Return every edit of the mutants and of the biased chaos runs."""
    lost = {edit for one in MUTANTS for edit in (one.edit, *one.also_without.values())}
    return lost | {edit for companions in COMPANIONS.values() for edit in companions}


@pytest.mark.parametrize("edit", sorted(edits()), ids=lambda edit: edit[0])
def test_the_text_that_a_mutant_removes_occurs_once(edit: Edit) -> None:
    place, old, new = edit

    assert (ROOT / place).read_text().count(old) == 1
    assert old != new


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.lost)
def test_the_tests_that_a_mutant_names_exist(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests:
        place, _, name = test.partition("::")
        module = importlib.import_module(place.removesuffix(".py").replace("/", "."))
        assert hasattr(module, name)


def test_the_chaos_run_covers_the_main_safeguards() -> None:
    assert [one.lost for one in MUTANTS if one.chaos] == IN_CHAOS


def test_every_bias_of_a_mutant_exists() -> None:
    assert {one.bias for one in MUTANTS} == set(BIASES) == set(COMPANIONS)


def test_a_finding_that_a_mutant_names_can_be_found() -> None:
    errors_of_postgres = {"deadlock detected", 'unique constraint "usage_ledger_once"'}
    named = {finding for one in MUTANTS for finding in one.chaos}

    assert named - errors_of_postgres <= {one.code for one in INVARIANTS}


def test_failures_are_read_from_the_output_of_pytest() -> None:
    output = (
        "FAILED tests/a.py::test_one[forged token] - AssertionError: assert True is False\n"
        "ERROR tests/a.py::test_two - a fixture broke\n"
        "FAILED tests/a.py::test_three\n"
        "1 failed\n"
    )

    assert failures(output) == {
        "tests/a.py::test_one": "AssertionError: assert True is False",
        "tests/a.py::test_three": "",
    }


@pytest.mark.parametrize(
    ("failed", "caught"),
    [
        ({TEST: "AssertionError: charges, a run was charged"}, True),
        ({TEST: "OperationalError: server closed the connection"}, False),
        ({"tests/integration/test_start.py::test_another": "charges"}, False),
        ({}, False),
    ],
    ids=["for its reason", "for another reason", "another test", "green"],
)
def test_only_the_named_test_with_its_message_catches_a_mutant(
    failed: dict[str, str], *, caught: bool
) -> None:
    assert judge_tests(LEDGER, failed).caught is caught


@pytest.mark.parametrize(
    ("failed", "caught"),
    [
        (
            {"not drained within 45 s": "12 tasks", "invariants": "attempt_numbers, …\ncharges, …"},
            True,
        ),
        ({"not drained within 45 s": "12 tasks"}, False),
        ({"invariants": "attempt_numbers, …"}, False),
        ({}, False),
    ],
    ids=["a used finding", "too slow", "another finding", "green"],
)
def test_only_a_named_finding_of_chaos_catches_a_mutant(
    failed: dict[str, str], *, caught: bool
) -> None:
    assert judge_chaos(LEDGER, failed).caught is caught


def test_the_table_lists_the_failures_of_each_mutant() -> None:
    results = [
        judge_tests(LEDGER, {TEST: "charges, charged twice"}),
        judge_chaos(LEDGER, {"not drained within 45 s": "12 tasks"}),
    ]

    _, first, second = table(results).splitlines()

    assert first.startswith("the ledger's key ")
    assert first.endswith(
        "caught  test_a_run_recorded_twice_is_charged_once: charges, charged twice"
    )
    assert second.startswith("the ledger's key, the fence, the worker's own clock  chaos")
    assert "MISSED" in second
