"""Deployment rules for the text of every module: what review would otherwise have to remember."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.rules.sources import as_lines, files, modules, read

OURS = ("app", "workers", "overnight", "beat_schedule.py")
CORE = (
    "app/overnight_server/domain",
    "app/overnight_server/store",
    "app/overnight_server/gate",
    "app/overnight_server/outcome",
    "app/overnight_server/maintenance",
    "app/overnight_server/intake",
    "app/overnight_server/control",
    "app/overnight_server/dispatch",
)
# Makes the roles and the database that the store then lives in, with no store to ask yet.
BEFORE_THE_STORE = Path("app/overnight_server/local/postgres.py")
SQL = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|MERGE INTO|TRUNCATE)\s")
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def test_every_module_class_and_public_function_says_what_it_is_for() -> None:
    silent = [
        f"{path}:{getattr(node, 'lineno', 1)}"
        for path, module in modules(*OURS)
        for node in (module, *_public(module))
        if not ast.get_docstring(node)
    ]

    assert not silent, as_lines(silent)


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path, module in modules(*OURS):
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno} {node.name}")

    repeated = [place for same_name in places.values() if len(same_name) > 1 for place in same_name]

    assert not repeated, as_lines(repeated)


# The time in new ids is the database's as soon as a connection has read it, and the host's before.
BEFORE_THE_FIRST_CONNECTION = {
    Path("app/overnight_server/domain/ids.py"),
    Path("app/overnight_server/store/database_clock.py"),
}


def test_the_core_asks_postgres_for_the_time_and_never_the_host() -> None:
    clocks = [
        f"{path}:{node.lineno}"
        for path, module in modules(*CORE)
        for node in ast.walk(module)
        if _reads_the_host_clock(node) and path not in BEFORE_THE_FIRST_CONNECTION
    ]

    assert not clocks, as_lines(clocks)


def test_every_statement_reads_the_clock_that_tests_can_move() -> None:
    other = re.compile(
        r"\b(now|\w+_timestamp|timeofday)\(\)|\b(current_timestamp|localtimestamp)\b", re.IGNORECASE
    )
    clocks = [
        f"{path}:{number}: {line.strip()}"
        for path in files("app/overnight_server/store")
        if path.suffix == ".sql" and path.name not in {"02_clock.sql", "demo_clock.sql"}
        for number, line in enumerate(read(path).splitlines(), start=1)
        if other.search(line.partition("--")[0])
    ]

    assert not clocks, as_lines(clocks)


def test_sql_stands_only_in_the_store() -> None:
    strays = [
        f"{path}:{text.lineno}: {text.value[:60]!r}"
        for path, module in modules("app", "workers")
        if not path.is_relative_to("app/overnight_server/store") and path != BEFORE_THE_STORE
        for text in _texts(module)
        if SQL.search(text.value)
    ]

    assert not strays, as_lines(strays)


def test_no_module_is_named_after_nothing_in_particular() -> None:
    vague = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
    paths = [str(path) for path, _ in modules(*OURS, "tests", "benchmarks") if path.stem in vague]

    assert not paths, as_lines(paths)


def test_no_type_is_waved_through_in_the_service() -> None:
    mark = "type: " + "ignore"
    waved = [str(path) for path, _ in modules(*OURS) if mark in read(path)]

    assert not waved, as_lines(waved)


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    ways_out = {"skip", "skipif", "skipIf", "skipUnless", "xfail", "importorskip", "SkipTest"}
    skipped = [
        f"{path}:{node.lineno}"
        for path, module in modules("tests")
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and node.attr in ways_out
    ]

    assert not skipped, as_lines(skipped)


def test_no_assertion_is_true_by_itself() -> None:
    empty = [
        f"{path}:{node.lineno}"
        for path, module in modules("tests")
        for node in ast.walk(module)
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant)
    ]

    assert not empty, as_lines(empty)


def test_the_rules_look_at_real_files() -> None:
    seen = {path for path, _ in modules(*OURS)}

    assert Path("app/overnight_server/domain/lifecycle.py") in seen
    assert not any("__pycache__" in path.parts for path in seen)


def _public(module: ast.Module) -> Iterator[Definition]:
    """The classes and functions others may name, and the methods of those classes."""
    for node in module.body:
        if isinstance(node, Definition):
            if node.name.startswith("_"):
                continue
            yield node
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not (
                    member.name.startswith("_") or _repeats_another(member)
                ):
                    yield member


def _repeats_another(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Overrides, overloads and setters are explained where they are first declared."""
    return any(
        ast.unparse(decorator).rpartition(".")[2] in {"override", "overload", "setter"}
        for decorator in method.decorator_list
    )


def _reads_the_host_clock(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="utcnow" | "utcfromtimestamp"):
            return True
        case ast.Attribute(attr="now" | "today", value=owner):
            return ast.unparse(owner).rpartition(".")[2] in {"datetime", "date"}
        case ast.Attribute(attr="time" | "time_ns", value=ast.Name(id="time")):
            return True
        case ast.ImportFrom(module="time", names=names):
            return any(name.name in {"time", "time_ns"} for name in names)
        case _:
            return False


def _texts(module: ast.Module) -> Iterator[ast.Constant]:
    """Every string of a module that is not a docstring."""
    prose = {
        id(node.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node
