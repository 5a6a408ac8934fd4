"""Ids: the printed form is converted to the stored one and back."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from overnight_server.domain.ids import (
    MalformedId,
    new_dag_id,
    new_task_id,
    parse_dag,
    parse_task,
    show_dag,
    show_task,
)

UUIDS = st.uuids(allow_nil=True)
LARGEST = UUID(int=2**128 - 1)
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZabcdefghjkmnpqrstvwxyz"


@given(UUIDS)
def test_a_task_id_is_read_back_from_its_text(number: UUID) -> None:
    assert parse_task(show_task(number)) == number


@given(UUIDS)
def test_a_dag_id_is_read_back_from_its_text(number: UUID) -> None:
    assert parse_dag(show_dag(number)) == number


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (UUID(int=0), "task_00000000000000000000000000"),
        (UUID(int=31), "task_0000000000000000000000000Z"),
        (LARGEST, "task_7ZZZZZZZZZZZZZZZZZZZZZZZZZ"),
    ],
)
def test_an_id_is_written_as_a_prefixed_ulid(number: UUID, text: str) -> None:
    assert show_task(number) == text


@given(UUIDS)
def test_an_id_in_lower_case_is_the_same_task(number: UUID) -> None:
    assert parse_task(show_task(number).lower()) == number


@given(UUIDS, UUIDS)
def test_texts_sort_as_their_ids_do(one: UUID, other: UUID) -> None:
    assert (show_task(one) < show_task(other)) == (one < other)


@given(st.text(CROCKFORD + "ß\u017f", min_size=24, max_size=25) | st.text())
def test_only_the_printed_form_of_an_id_is_read_in_any_case(body: str) -> None:
    text = f"task_0{body}"
    try:
        task = parse_task(text)
    except MalformedId:
        return

    assert show_task(task).lower() == text.lower()


@pytest.mark.parametrize("make", [new_task_id, new_dag_id])
def test_a_new_id_contains_its_creation_time(make: Callable[[], UUID]) -> None:
    moment = ULID.from_uuid(make()).datetime

    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=1)


@pytest.mark.parametrize("make", [new_task_id, new_dag_id])
def test_generated_ids_are_unique(make: Callable[[], UUID]) -> None:
    assert len({make() for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    "body",
    [
        "",
        "0",
        "0000000000000000000000001",
        "000000000000000000000000001",
        " 0000000000000000000000001",
        "0000000000000000000000001 ",
        "00000000000000000000000001\n",
        "0000000000000000000000000U",
        "0000000000000000000000000I",
        "0000000000000000000000000L",
        "0000000000000000000000000O",
        "80000000000000000000000000",
        "ZZZZZZZZZZZZZZZZZZZZZZZZZZ",
        "0000000000000000000000000\x00",
        "0000000000000000000000000é",
        "000000000000000000000000ß",
        "0000000000000000000000000\u017f",  # a long s, whose capital is S
        "٣" * 26,
        "00000000-0000-0000-0000-000000000001",
        "task_00000000000000000000000001",
    ],
)
def test_a_text_that_is_not_a_ulid_is_refused(body: str) -> None:
    with pytest.raises(MalformedId, match="is not a ULID after 'task_'"):
        parse_task(f"task_{body}")
    with pytest.raises(MalformedId, match="is not a ULID after 'dag_'"):
        parse_dag(f"dag_{body}")


@pytest.mark.parametrize("prefix", ["", "_", "task", "TASK_", "Task_", "user_", " task_", "dag_"])
def test_a_task_has_no_other_prefix(prefix: str) -> None:
    with pytest.raises(MalformedId, match="does not start with 'task_'"):
        parse_task(f"{prefix}00000000000000000000000001")


def test_a_dag_is_not_a_task() -> None:
    with pytest.raises(MalformedId, match="does not start with 'dag_'"):
        parse_dag(show_task(new_task_id()))
