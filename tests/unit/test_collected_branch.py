"""A branch is stored as a bundle and a patch; a run whose commits cannot be stored fails."""

import pytest

from overnight.errors import StorageLimitReached, StoreUnavailable
from overnight.handlers.control_exceptions import Fail
from overnight.testing import MemoryContext
from overnight_worker.collect import BUNDLE_NAME, PATCH_NAME, store_changes
from overnight_worker.git_workspace import Changes

BUNDLE = b"# v2 git bundle\n\xff"


def test_a_patch_of_text_is_stored_as_text() -> None:
    context = MemoryContext()

    store_changes(context, Changes(("a.txt",), 1, bundle=BUNDLE, patch=b"+one\n"))

    assert context.artifacts == {BUNDLE_NAME: BUNDLE, PATCH_NAME: "+one\n"}


def test_commits_that_are_too_large_fail_the_run() -> None:
    with pytest.raises(Fail, match="more than 64 MB"):
        store_changes(MemoryContext(), Changes(("large.bin",), 1))


def test_a_patch_that_is_too_large_is_logged() -> None:
    context = MemoryContext()

    store_changes(context, Changes(("large.txt",), 1, bundle=BUNDLE))

    assert list(context.artifacts) == [BUNDLE_NAME]
    assert PATCH_NAME in str(context.log_lines)


class FullContext(MemoryContext):
    """The context of a user who may store nothing more."""

    def artifact(self, *_: object, **__: object) -> str:
        raise StorageLimitReached(900, 200, 1000)


def test_commits_that_may_not_be_stored_fail_the_run_for_good() -> None:
    """Each further attempt would do the same work, and lose it again."""
    with pytest.raises(Fail, match="commits of the run cannot be stored: the user's artifacts"):
        store_changes(FullContext(), Changes(("a.txt",), 1, bundle=BUNDLE))


class UnreachableContext(MemoryContext):
    """The context of a run while the artifact store is away."""

    def artifact(self, *_: object, **__: object) -> str:
        raise StoreUnavailable("it does not answer")


def test_a_run_whose_commits_cannot_be_stored_now_may_be_repeated() -> None:
    with pytest.raises(StoreUnavailable):
        store_changes(UnreachableContext(), Changes(("a.txt",), 1, bundle=BUNDLE))
