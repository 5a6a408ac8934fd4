"""The arguments of `python -m tests.chaos`."""

from pathlib import Path

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos.driver import Options
from tests.chaos.report import Report


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Replace the run by one that only records its options."""
    recorded: list[Options] = []

    def run(options: Options, _: Path) -> Report:
        recorded.append(options)
        return Report(options.seed, options.seconds)

    monkeypatch.setattr(chaos, "run", run)
    return recorded


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--seconds", "0", "'0' must be seconds above 0"),
        ("--seconds", "-3", "'-3' must be seconds above 0"),
        ("--seconds", "nan", "'nan' must be seconds above 0"),
        ("--seconds", "inf", "'inf' must be seconds above 0"),
        ("--kill-every", "0", "'0' must be seconds above 0"),
        ("--drain", "0", "'0' must be seconds above 0"),
        ("--tasks", "0", "'0' must be a whole number from 1"),
        ("--tasks", "-1", "'-1' must be a whole number from 1"),
        ("--at-least", "kill=-1", "'-1' must be a whole number from 1"),
        ("--at-least", "kill=many", "'many' must be a whole number from 1"),
        ("--at-least", "kill", "'kill' must be WHAT=N, such as kill=200"),
        ("--json", "nowhere/x.json", "'nowhere/x.json' must be a file in a folder that exists"),
        ("--logs", __file__, f"'{__file__}' must be a folder that can be written to"),
        ("--at-least", "nonsense=3", "the report has no count 'nonsense'; it has: kill, kill main"),
    ],
)
def test_an_invalid_option_is_refused_in_one_line(
    option: str,
    value: str,
    message: str,
    started: list[Options],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as refused:
        chaos.main([option, value])

    shown = capsys.readouterr()
    assert refused.value.code == 2
    assert f"{option}: {message}" in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out
    assert not started


def test_every_count_of_the_report_may_have_a_minimum(
    started: list[Options], tmp_path: Path
) -> None:
    arguments = (
        "submissions acknowledged=9, crash postgres=2,worker ended with -9=1,attempts lost=3"
    )

    chaos.main(["--logs", str(tmp_path), "--at-least", arguments])

    assert started[0].at_least == {
        "submissions acknowledged": 9,
        "crash postgres": 2,
        "worker ended with -9": 1,
        "attempts lost": 3,
    }


@pytest.mark.parametrize(("arguments", "left"), [([], 0), (["--logs", "{}/logs"], 1)])
def test_an_interrupted_run_removes_only_its_temporary_directory(
    arguments: list[str], left: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directories: list[Path] = []

    def run(_: Options, directory: Path) -> Report:
        directories.append(directory)
        raise SystemExit(143)

    monkeypatch.setattr(chaos, "run", run)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(SystemExit):
        chaos.main([argument.format(tmp_path) for argument in arguments])

    assert len(directories) == 1
    assert len(list(tmp_path.iterdir())) == left
