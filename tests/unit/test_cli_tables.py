"""Tables fit the terminal: columns are left out, then rows become blocks; pipes get everything."""

import sys
from datetime import UTC, datetime

import pytest

from overnight_server.cli.terminal import output

ID = "task_01J8K0000000000000000000AB"
AT = datetime(2026, 11, 16, 7, 0, tzinfo=UTC)
HEADERS = ("ID", "CREATED", "USER", "TYPE", "EMPTY", "TITLE")
ROW = (output.Id(ID), AT, "ada", "report", None, "write the report about everything " * 3)


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is sys.stdout)


def drawn(capsys: pytest.CaptureFixture[str], optional: tuple[str, ...] = ()) -> list[str]:
    output.table(HEADERS, [ROW, ROW], optional=optional)
    return capsys.readouterr().out.splitlines()


def test_a_pipe_gets_whole_ids_utc_times_and_every_column(
    capsys: pytest.CaptureFixture[str],
) -> None:
    header, first, _ = drawn(capsys)

    assert header.split() == list(HEADERS)
    assert first.split()[:5] == [ID, "2026-11-16", "07:00:00Z", "ada", "report"]


@pytest.mark.parametrize("columns", [80, 40])
def test_no_line_is_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    on_a_terminal(monkeypatch, columns)

    lines = drawn(capsys, optional=("TYPE", "CREATED"))

    assert max(len(line) for line in lines) <= columns
    assert "EMPTY" not in lines[0]


def test_a_terminal_gets_short_ids_and_one_line_per_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, 80)

    text = "\n".join(drawn(capsys))

    assert [line.split()[:4] for line in text.splitlines()].count(
        ["000000AB", "11-16", "07:00", "ada"]
    ) == 2
    assert ID not in text


def test_optional_columns_are_left_out_in_their_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, 45)

    header = drawn(capsys, optional=("TYPE", "CREATED", "USER"))[0]

    assert header.split() == ["ID", "USER", "TITLE"] or header.split() == [
        "ID",
        "CREATED",
        "USER",
        "TITLE",
    ]
    assert "TYPE" not in header


def test_a_narrow_terminal_gets_one_block_per_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, 30)

    lines = drawn(capsys)

    assert lines[0].split() == ["id", "000000AB"]
    assert "" in lines
    assert [line.split()[0] for line in lines[: lines.index("")]][:2] == ["id", "created"]


def test_a_name_is_not_cut_where_a_text_of_the_same_length_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, 120)
    name, text = "OVERNIGHT_ALLOW_SHORT_CLAIMS_AT_NIGHT", "a title of about as many letters here"

    output.table(("SETTING", "TITLE", "VALUE"), [(name, text, "yes")])

    drawn_table = capsys.readouterr().out
    assert name in drawn_table
    assert text not in drawn_table
