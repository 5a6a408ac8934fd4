"""A branch is stored as a bundle and a patch; a run whose commits cannot be stored fails."""

import pytest

from overnight.handlers.control_exceptions import Fail
from overnight.testing import MemoryContext
from overnight_worker.collect import BUNDLE_NAME, PATCH_NAME, store_changes
from overnight_worker.git_workspace import Changes

BUNDLE = b"# v2 git bundle\n\xff"


def test_a_patch_of_text_is_stored_as_text() -> None:
    context = MemoryContext()

    store_changes(context, Changes(("a.txt",), bundle=BUNDLE, patch=b"+one\n"))

    assert context.artifacts == {BUNDLE_NAME: BUNDLE, PATCH_NAME: "+one\n"}


def test_commits_that_are_too_large_fail_the_run() -> None:
    with pytest.raises(Fail, match="more than 64 MB"):
        store_changes(MemoryContext(), Changes(("large.bin",)))


def test_a_patch_that_is_too_large_is_logged() -> None:
    context = MemoryContext()

    store_changes(context, Changes(("large.txt",), bundle=BUNDLE))

    assert list(context.artifacts) == [BUNDLE_NAME]
    assert PATCH_NAME in str(context.log_lines)
