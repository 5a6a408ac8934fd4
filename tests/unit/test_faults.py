"""Fault points fail only when they are armed, and only once."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight_server.fault_points import POINTS, Fault, FaultRaised, Mode, arm, fault, parse
from overnight_server.settings import SettingsError, load
from tests.rules.sources import ROOT, modules
from tests.rules.sources import read as source


@pytest.fixture(autouse=True)
def nothing_armed() -> Iterator[None]:
    yield
    arm(None)


def test_a_point_that_is_not_armed_does_nothing() -> None:
    arm("claim.after_commit=raise")

    fault("claim.before_commit")


def test_an_armed_point_fails_once() -> None:
    arm("claim.after_commit=raise")

    with pytest.raises(FaultRaised, match=r"claim\.after_commit"):
        fault("claim.after_commit")
    fault("claim.after_commit")


def test_a_point_with_a_file_fails_once_in_all_processes(tmp_path: Path) -> None:
    once = f"claim.after_commit=raise@{tmp_path / 'once'}"
    arm(once)
    with pytest.raises(FaultRaised):
        fault("claim.after_commit")

    arm(once)
    fault("claim.after_commit")

    assert (tmp_path / "once").exists()


def test_a_kill_ends_the_process_at_once() -> None:
    program = (
        "from overnight_server.fault_points import arm, fault; arm('reap.after_search=kill');"
        "fault('reap.after_search'); print('alive')"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=False,
        env={"PYTHONPATH": str(ROOT)},
    )

    assert ended.returncode == -signal.SIGKILL
    assert b"alive" not in ended.stdout


def test_a_delay_waits() -> None:
    arm("reap.after_search=delay:0.05")
    began = time.monotonic()

    fault("reap.after_search")

    assert time.monotonic() - began >= 0.05


def test_several_points_are_armed_at_once(tmp_path: Path) -> None:
    assert parse(f"reap.after_search=delay:6@{tmp_path}/a, settle.after_commit=drop") == [
        Fault("reap.after_search", Mode.DELAY, 6.0, tmp_path / "a"),
        Fault("settle.after_commit", Mode.DROP),
    ]


@pytest.mark.parametrize(
    "setting", ["", "claim.after_commit", "claim.after_comit=kill", "claim.after_commit=delay", "="]
)
def test_a_malformed_fault_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="is not a fault"):
        parse(setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "claim.after_comit=kill",
            r"no point 'claim\.after_comit' \(nearest: claim\.after_commit\)",
        ),
        ("NoSuch=kill", "no point 'NoSuch'"),
        ("claim.after_commit=kil", "no mode 'kil'; use kill, raise, drop or delay:SECONDS"),
        ("claim.after_commit=delay@/tmp/once", "no mode 'delay'; .* such as delay:0.5"),
        ("claim.after_commit=kill:3", "no mode 'kill:3'"),
        ("claim.after_commit", "write point=mode or point=mode@file"),
    ],
)
def test_a_refusal_names_the_wrong_part_and_the_legal_values(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(setting)


def test_a_wrong_point_stops_a_process_at_its_start() -> None:
    with pytest.raises(SettingsError, match=r"OVERNIGHT_FAULT.*no point 'nowhere'"):
        load({"OVERNIGHT_FAULT": "nowhere=kill"})


def test_the_table_lists_exactly_the_points_in_the_code() -> None:
    """One name may be used at several places: the cancel of a graph is also a cancel."""
    used = {
        name
        for path, _ in modules("app", "workers")
        for name in re.findall(r'fault\("([a-z_.]+)"\)', source(path))
        if path != Path("app/overnight_server/fault_points.py")
    }

    assert used == set(POINTS)
