"""What a chaos run cannot do is refused before it begins."""

from pathlib import Path

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos.driver import Options
from tests.chaos.report import Report


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Note what would have been run, instead of breaking a deployment for it."""
    asked: list[Options] = []

    def run(options: Options, _: Path) -> Report:
        asked.append(options)
        return Report(options.seed, options.seconds)

    monkeypatch.setattr(chaos, "run", run)
    return asked


@pytest.mark.parametrize(
    ("option", "value", "said"),
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
        ("--json", "nowhere/x.json", "'nowhere/x.json' must be a file in a folder that is there"),
        ("--logs", __file__, f"'{__file__}' must be a folder that can be written to"),
        ("--at-least", "nonsense=3", "nothing counts 'nonsense'; there is: kill, kill main"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(
    option: str, value: str, said: str, begun: list[Options], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        chaos.main([option, value])

    shown = capsys.readouterr()
    assert refused.value.code == 2
    assert f"{option}: {said}" in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out
    assert not begun


def test_what_the_report_counts_may_be_asked_for(begun: list[Options], tmp_path: Path) -> None:
    words = "submissions acknowledged=9, crash postgres=2,worker ended with -9=1,attempts lost=3"

    chaos.main(["--logs", str(tmp_path), "--at-least", words])

    assert begun[0].at_least == {
        "submissions acknowledged": 9,
        "crash postgres": 2,
        "worker ended with -9": 1,
        "attempts lost": 3,
    }


@pytest.mark.parametrize(("words", "left"), [([], 0), (["--logs", "{}/logs"], 1)])
def test_a_run_told_to_end_leaves_only_a_place_that_was_given(
    words: list[str], left: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places: list[Path] = []

    def run(_: Options, place: Path) -> Report:
        places.append(place)
        raise SystemExit(143)

    monkeypatch.setattr(chaos, "run", run)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(SystemExit):
        chaos.main([word.format(tmp_path) for word in words])

    assert len(places) == 1
    assert len(list(tmp_path.iterdir())) == left
