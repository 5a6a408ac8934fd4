"""The benchmarks as instruments: each rehearses, judges whole lives and leaves its files."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import goals, registry, report_page, result_files
from benchmarks.__main__ import main, run_benchmark
from benchmarks.deployment import fresh_deployment, noop
from benchmarks.drain import IncompleteRun, check_every_task_ran_once
from benchmarks.options import Options
from benchmarks.results import BenchmarkResult, BenchmarkResultDict, percentile
from benchmarks.servers import BenchmarkServers, start_servers
from tests.rules.sources import ROOT
from tests.support.wait import wait_until

KNOWN = registry.all_benchmarks()
# The others take half a minute each, even as quick runs: `make proof` runs them.
QUICK = {"api", "claim", "drain", "http-agents", "settle", "submit"}
# The peers' environment is made by `make bench` alone.
TINY = Options(quick=True, jobs=10, only=("overnight", "celery"))


@pytest.fixture(scope="module")
def servers() -> Iterator[BenchmarkServers]:
    with start_servers(durable=False) as servers:
        yield servers


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.proof) for name in KNOWN],
)
def test_a_quick_benchmark_writes_its_result_files(
    name: str, servers: BenchmarkServers, tmp_path: Path
) -> None:
    result = run_benchmark(KNOWN[name], TINY, servers, tmp_path)

    written = tmp_path / "quick" / f"{name}.json"
    assert json.loads(written.read_text()) == result
    assert result["figures"]
    assert all(row["median"] >= 0 for row in result["figures"])
    assert all(probe["fsync_ms"] > 0 for probe in result["probes"])
    assert result["probes"]
    drawn = ET.parse(written.with_suffix(".svg")).getroot()
    assert drawn.tag.endswith("svg")


def test_a_task_that_did_not_live_its_whole_life_spoils_the_figure(
    servers: BenchmarkServers,
) -> None:
    with fresh_deployment(servers) as deployment:
        deployment.fill(deployment.users(1), 1)

        with pytest.raises(IncompleteRun):
            check_every_task_ran_once(deployment, jobs=1, runs=1)


def test_every_goal_names_a_benchmark_that_there_is() -> None:
    assert {goal.benchmark for goal in goals.GOALS} <= KNOWN.keys()


def test_the_report_says_what_was_reached_and_what_was_not() -> None:
    result = BenchmarkResult(
        ratios={"overnight / celery": 7.0, "overnight / dbos": 21.0, "overnight / pgqueuer": 0.5}
    )
    results = {"drain": result.as_dict("drain", "")}

    by_text = {goal.text: goal for goal in goals.GOALS}
    verdicts = {
        text: goals.verdict(goal, goals.value_of(goal, results)) for text, goal in by_text.items()
    }

    assert verdicts["drain, full life, against raw Celery"] == "floor reached"
    assert verdicts["drain against dbos with partitions"] == "goal reached"
    assert verdicts["drain against pgqueuer, batch 100"] == "behind"
    assert verdicts["idle stack, % of one core"] == "not measured"


def test_the_report_stands_between_the_marks_of_its_page(tmp_path: Path) -> None:
    copy = tmp_path / "performance.md"
    copy.write_text(report_page.PAGE.read_text())
    result = BenchmarkResult(ratios={"overnight / celery": 7.0})
    result.figure("overnight", "drain", "jobs/s", [1234.5])

    report_page.write({"drain": result.as_dict("drain", "How fast?")}, copy)

    before, _, rest = copy.read_text().partition(report_page.BEGIN)
    body, _, after = rest.partition(report_page.END)
    assert before.startswith("# Performance")
    assert "| overnight / celery | 7 |" in body
    assert "| overnight | drain | 1,234 jobs/s |" in body
    assert "## How to read them" in after


def test_what_was_not_measured_again_stays_as_it_was_published(tmp_path: Path) -> None:
    copy = tmp_path / "performance.md"
    copy.write_text(report_page.PAGE.read_text())
    first, again = (_drained(rate, cpu) for rate, cpu in ((1000.0, 3.0), (2000.0, 1.0)))

    report_page.write(first, copy)
    both = copy.read_text()
    report_page.write({"drain": again["drain"]}, copy)

    one = copy.read_text()
    assert "| overnight | drain | 2,000 jobs/s |" in one
    assert "1,000 jobs/s" not in one
    assert "| idle stack, % of one core | ≤ 5 | ≤ 2 | 3 | floor reached |" in one
    assert _headings(one) == _headings(both)
    assert _of("idle", one) == _of("idle", both)
    assert _of("submit", one) == _of("submit", report_page.PAGE.read_text())


def test_publishing_nothing_changes_no_section(tmp_path: Path) -> None:
    copy = tmp_path / "performance.md"
    copy.write_text(report_page.PAGE.read_text())

    report_page.write(_drained(1000.0, 3.0), copy)
    before = copy.read_text()
    report_page.write({}, copy)

    assert copy.read_text() == before


def test_a_report_of_nothing_is_not_published(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(result_files, "RESULTS", tmp_path)
    before = report_page.PAGE.read_bytes()

    assert main(["report", "--write"]) == 1

    assert "nothing has been measured yet" in capsys.readouterr().err
    assert report_page.PAGE.read_bytes() == before


def _drained(rate: float, cpu: float) -> dict[str, BenchmarkResultDict]:
    drain, idle = BenchmarkResult(), BenchmarkResult(ratios={"CPU, % of one core": cpu})
    drain.figure("overnight", "drain", "jobs/s", [rate])
    return {"drain": drain.as_dict("drain", "How fast?"), "idle": idle.as_dict("idle", "Still?")}


def _headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def _of(name: str, text: str) -> str:
    return (
        text.partition(f"### {name}\n")[2].partition("\n#")[0].partition(report_page.END)[0].strip()
    )


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (Options(), "full"),
        (Options(rounds=5), "full"),
        (Options(rounds=2), "trial"),
        (Options(only=("overnight",)), "trial"),
        (Options(settings={"bundle_max": "1"}), "trial"),
        (TINY, "quick"),
    ],
)
def test_only_a_full_and_unchanged_run_is_a_measurement(options: Options, kind: str) -> None:
    assert options.kind == kind


def test_ratios_of_rounds_cancel_a_slow_minute() -> None:
    result = BenchmarkResult()

    result.ratio("ours / theirs", [100, 10, 100], [50, 5, 50])

    assert result.ratios == {"ours / theirs": 2.0}


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_a_value_that_was_seen(share: float, value: int) -> None:
    assert percentile(list(range(1, 101)), share) == value


@pytest.mark.parametrize(
    ("words", "log_tail"),
    [
        (("--rounds", "0"), "--rounds: '0' must be a whole number from 1"),
        (("--rounds", "-1"), "--rounds: '-1' must be a whole number from 1"),
        (("--jobs", "0"), "--jobs: '0' must be a whole number from 1"),
        (("--jobs", "many"), "--jobs: 'many' must be a whole number from 1"),
        (("--set", "bundle_mix=1"), "--set: no setting 'bundle_mix' (nearest: bundle_max)"),
        (("--set", "bundle_max=0"), "--set: OVERNIGHT_BUNDLE_MAX=0: must be a whole number from 1"),
        (("--set", "OVERNIGHT_Bundle_Max=0"), "--set: OVERNIGHT_BUNDLE_MAX=0: must be"),
        (("--set", "idle"), "--set: 'idle' must be NAME=VALUE"),
        (("--only", "nosuch", "drain"), "--only: no queue 'nosuch'; there is: overnight, cel"),
        (("--quick", "--write"), "--write publishes whole measurements only"),
        (("nosuch",), "no benchmark nosuch; there is: api"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    words: tuple[str, ...],
    log_tail: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(result_files, "RESULTS", tmp_path)

    with pytest.raises(SystemExit) as refused:
        main(words)

    shown = capsys.readouterr()
    assert refused.value.code == 2
    assert log_tail in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out
    assert not list(tmp_path.iterdir())


def test_settings_are_judged_together() -> None:
    short = ("--set", "lease_seconds=3", "--set", "heartbeat_interval=1")

    with pytest.raises(SystemExit):
        main([*short, "--list"])
    assert main([*short, "--set", "allow_short_clocks=true", "--list"]) == 0


def test_the_command_lists_every_benchmark() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert [line.split()[0] for line in listed.splitlines()] == list(KNOWN)


def test_whoever_stops_reading_the_report_hears_no_complaint() -> None:
    gone, pipe = os.pipe()
    os.close(gone)

    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", "report"],
        cwd=ROOT,
        check=True,
        stdout=pipe,
        stderr=subprocess.PIPE,
        text=True,
    )

    os.close(pipe)
    assert not ended.stderr


def test_a_benchmark_that_is_told_to_end_leaves_no_directory(tmp_path: Path) -> None:
    measuring = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "--quick", "--only", "overnight", "idle"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: any(tmp_path.glob("overbench-*/pg/**/postmaster.pid")), timeout=60)
        measuring.terminate()
        measuring.terminate()
        _, complaint = measuring.communicate(timeout=60)
    finally:
        measuring.kill()

    assert measuring.returncode == 128 + signal.SIGTERM
    assert not complaint
    assert not list(tmp_path.glob("overbench-*"))


def test_a_no_op_carries_its_label_only_when_it_has_one() -> None:
    assert noop().payload == {}
    assert noop(7).payload == {"label": 7}
