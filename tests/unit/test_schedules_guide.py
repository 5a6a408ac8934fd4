"""The guide to schedules says what the code does: every time, name, status and policy."""

import re
from pathlib import Path

import pytest

from overnight_server.domain.payload_templates import NAMES
from overnight_server.domain.schedule_words import parse_when
from overnight_server.domain.schedules import CatchUp, FireStatus, Overlap
from tests.rules.sources import read
from tests.support.schedules import at

GUIDE = read(Path("docs/guides/schedules.md"))
NOW = at("2026-07-01T12:00Z")


def first_cells(section: str) -> list[str]:
    """Return what stands in backticks in the first column of the table of a section."""
    _, _, rest = GUIDE.partition(f"\n## {section}\n")
    rows = re.findall(r"^\| (`.+?) \|", rest.partition("\n## ")[0], flags=re.MULTILINE)
    return [cell for row in rows for cell in re.findall(r"`(.+?)`", row)]


@pytest.mark.parametrize("words", first_cells("When it fires"))
def test_a_time_of_the_guide_is_understood(words: str) -> None:
    assert parse_when(words, "Europe/Berlin", NOW)


def test_the_guide_lists_every_name_of_templates() -> None:
    listed = {cell.strip("{} ") for cell in first_cells("What the texts may hold")}

    assert listed == set(NAMES)


def test_the_guide_lists_every_status_and_policy() -> None:
    assert set(first_cells("What became of a fire time")) == set(FireStatus)
    for policy in (*Overlap, *CatchUp):
        assert f"`{policy}`" in GUIDE
