"""Parsing of arguments and printing of results, without a server."""

import io
from pathlib import Path

import pytest
import typer

from overnight_server.cli.terminal import arguments, output, short_ids
from overnight_server.cli.terminal.failures import Code, CommandFailure, report

ALPHA = "task_01J8K0000000000000000000AA"
BETA = "task_01J8K0000000000000000000BB"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("45s", 45), ("30m", 1800), ("1h30m", 5400), ("2d", 172_800), (" 1H ", 3600)],
)
def test_a_duration_is_read_as_seconds(text: str, expected: int) -> None:
    assert arguments.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0s", "-5", "3y", "m", "1m1h", "1.5h", "99999d"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        arguments.seconds(text)


def test_a_payload_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"hello": "wörld"}', encoding="utf-8")

    assert arguments.json_object(f"@{file}") == {"hello": "wörld"}


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "1",
        "{",
        "",
        '{"a": NaN}',
        "@no-such-file",
        "[" * 100_000,
        f'{{"a": {"9" * 5000}}}',
    ],
)
def test_a_payload_that_is_not_a_json_object_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        arguments.json_object(text)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "noise"
    file.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(typer.BadParameter, match="not UTF-8"):
        arguments.text_of(f"@{file}")


def test_input_that_is_not_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x00"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", noise)

    with pytest.raises(typer.BadParameter, match="not UTF-8"):
        arguments.text_of("-")


@pytest.mark.parametrize(
    "value", ["0AA", "aa", "task_01j8k0000000000000000000aa", "01J8K" + "0" * 19 + "A"]
)
def test_a_task_is_found_by_a_unique_beginning_or_ending(value: str) -> None:
    assert short_ids.choose(value, [ALPHA, BETA], among="task") == ALPHA


def test_an_abbreviation_of_two_ids_lists_both() -> None:
    with pytest.raises(CommandFailure) as caught:
        short_ids.choose("01J8K", [ALPHA, BETA], among="task")

    assert caught.value.code is Code.USAGE
    assert ALPHA in caught.value.message
    assert BETA in caught.value.message


@pytest.mark.parametrize("value", ["", "task_", "  "])
def test_an_empty_id_is_refused(value: str) -> None:
    with pytest.raises(CommandFailure):
        short_ids.choose(value, [ALPHA], among="task")


def test_control_characters_are_printed_as_escapes() -> None:
    shown = output.printable("evil\x1b]0;title\x07 \u202egnp.exe \r ok 👩\u200d💻 ö")

    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\r" not in shown
    assert shown.endswith("ok 👩\u200d💻 ö")


def test_piped_columns_are_aligned_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("ID", "TITLE"), [("a", "two\nlines"), ("long-id", None)])

    assert capsys.readouterr().out == "ID       TITLE\na        two lines\nlong-id  -\n"


def test_an_empty_list_prints_a_message_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("ID",), [], empty="No tasks.")

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "No tasks.\n"


def test_a_record_leaves_out_fields_without_a_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.record({"id": "x", "empty": None, "none": 0, "output": {"a": 1}, "tags": ["b", "c"]})

    assert capsys.readouterr().out.splitlines() == [
        "id      x",
        "none    0",
        "output  {",
        '          "a": 1',
        "        }",
        "tags    b, c",
    ]


def test_a_failure_is_printed_as_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report(CommandFailure("boom\n  at \x1b[31mline 1", hint="Try again."))

    assert capsys.readouterr().err == "Error: boom at \\x1b[31mline 1\nTry again.\n"
