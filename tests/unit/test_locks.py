"""Lock keys: how they are spelt, and which are in each other's way."""

import pytest

from overnight.errors import InvalidRequest
from overnight_server.domain.lock_keys import (
    LockScope,
    are_in_conflict,
    covers,
    keys_of,
    normalised,
)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ([], ()),
        (["repo:b", "repo:a", "repo:b"], ("repo:a", "repo:b")),
        (["path:./src//a/"], ("path:src/a",)),
        (["path:/srv/app/"], ("path:/srv/app",)),
        (["path:src/a", "path:src", "path:srcs"], ("path:src", "path:srcs")),
        (["path:."], ("path:.",)),
        (["path:/"], ("path:.",)),
        (["path:.", "path:src", "repo:a"], ("path:.", "repo:a")),
        (["Path:src/", "paths"], ("Path:src/", "paths")),
    ],
)
def test_keys_are_normalized(given: list[str], stored: tuple[str, ...]) -> None:
    assert normalised(given) == stored
    assert normalised(stored) == stored


@pytest.mark.parametrize(
    "given", [[""], ["x" * 256], ["path:"], ["path:src/../secret"], [f"key {n}" for n in range(21)]]
)
def test_an_invalid_key_is_refused(given: list[str]) -> None:
    with pytest.raises(InvalidRequest, match=r"locks: .*; legal: "):
        normalised(given)


@pytest.mark.parametrize(
    ("one", "two", "meet"),
    [
        (["repo:a"], ["repo:a"], True),
        (["repo:a"], ["repo:b"], False),
        (["repo:a"], ["repo:a/b"], False),
        (["path:src"], ["path:src/a/b"], True),
        (["path:src/a"], ["path:src/b"], False),
        (["path:src"], ["path:src-old"], False),
        (["path:src"], ["path:src0"], False),
        (["path:."], ["path:anything"], True),
        (["path:."], ["repo:a"], False),
        (["path:/src"], ["path:src"], False),
        (["path:a", "repo:x"], ["path:b", "repo:x"], True),
        ([], ["repo:a"], False),
    ],
)
def test_two_sets_of_keys_conflict_or_do_not(one: list[str], two: list[str], *, meet: bool) -> None:
    assert are_in_conflict(one, two) is meet
    assert are_in_conflict(two, one) is meet


def test_a_key_covers_itself_and_a_path_covers_paths_below_it() -> None:
    assert covers("repo:a", "repo:a")
    assert covers("path:src", "path:src/a")
    assert not covers("path:src/a", "path:src")


@pytest.mark.parametrize(
    ("declared", "project", "scope", "locked"),
    [
        ((), None, "project", None),
        ((), "site", "project", ("project:site",)),
        ((), "site", "none", None),
        ((), None, "user", ("user",)),
        (("repo:a",), "site", "project", ("repo:a",)),
        (("repo:a",), "site", "none", ("repo:a",)),
        (("repo:a",), "site", "user", ("repo:a", "user")),
    ],
)
def test_the_lock_keys_of_a_task_follow_from_its_fields_and_the_scope(
    declared: tuple[str, ...],
    project: str | None,
    scope: LockScope,
    locked: tuple[str, ...] | None,
) -> None:
    assert keys_of(declared, project, scope) == locked
