"""Which repositories are allowed, and what git reports about changes."""

from pathlib import Path

import pytest

from overnight.handlers.control_exceptions import Fail
from overnight_server.domain.lock_keys import repository_key
from overnight_worker.git_workspace import (
    MAX_NAMES_BYTES,
    Changes,
    Repository,
    parse_numstat,
)
from overnight_worker.source_repository import check_allowed


def test_a_repository_is_allowed_by_itself_or_a_path_above(tmp_path: Path) -> None:
    allowed = (str(tmp_path), "https://git.example.com/team")

    check_allowed(str(tmp_path), allowed)
    check_allowed(f"{tmp_path}/a/b", allowed)
    check_allowed("https://git.example.com/team/site.git", allowed)


@pytest.mark.parametrize(
    "source",
    [
        "/elsewhere",
        "{}x",
        "{}/../elsewhere",
        "https://git.example.com/team2/site",
        "https://git.example.com/team/../team2/site",
        "https://git.example.com/team/%2e%2E/team2/site",
        "https://git.example.com/team/%252e./team2/site",
        "https://git.example.com/team/a\\..\\..\\team2/site",
        "https://x.org/",
    ],
)
def test_other_repositories_are_refused_with_what_is_allowed(tmp_path: Path, source: str) -> None:
    allowed = (str(tmp_path), "https://git.example.com/team")

    with pytest.raises(Fail, match=r"^repo: this worker may not read ") as refused:
        check_allowed(source.format(tmp_path), allowed)

    assert refused.value.error_class == "invalid_input"
    setting = f"OVERNIGHT_ALLOWED_REPOSITORIES is {tmp_path},https://git.example.com/team."
    assert setting in str(refused.value)
    with pytest.raises(Fail, match="OVERNIGHT_ALLOWED_REPOSITORIES is not set"):
        check_allowed("/elsewhere", ())


def test_a_link_out_of_an_allowed_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path)

    with pytest.raises(Fail):
        check_allowed(f"{tmp_path}/allowed/link", (f"{tmp_path}/allowed",))


def test_the_numbers_of_a_diff_are_read() -> None:
    lines = b"3\t1\ta b.txt\0-\t-\tpicture.png\0002\t0\t\0old\0new\0"

    assert parse_numstat(lines) == Changes(("a b.txt", "picture.png", "new"), 3, 5, 1)
    assert parse_numstat(b"") == Changes()


def test_the_names_of_changed_files_are_limited_and_all_are_counted() -> None:
    names = [b"n" * 3000 + b"%d" % number for number in range(1000)]

    changes = parse_numstat(b"".join(b"1\t0\t" + name + b"\0" for name in names))

    assert (changes.count, changes.insertions) == (1000, 1000)
    assert MAX_NAMES_BYTES // 3100 < len(changes.files) <= MAX_NAMES_BYTES // 3000
    assert parse_numstat("\u00b2\t-\tx\0".encode()).insertions == 0


def test_only_a_url_has_a_host_and_maybe_a_port() -> None:
    assert Repository("/srv/site", "", "b").hosts == ()
    assert Repository("https://git.example.com/site", "", "b").hosts == ("git.example.com",)
    assert Repository("https://git.example.com:8443/a", "", "b").hosts == ("git.example.com:8443",)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://x.org/a.git", "https://x.org/a/"),
        ("https://x.org/a", "https://X.ORG:443//a/.git"),
        ("/srv/site", "/srv/site/.git"),
        ("/srv/site", "/srv/./other/..//site/"),
        ("/srv/site", "//srv/site"),
    ],
)
def test_equal_repositories_have_one_lock(one: str, other: str) -> None:
    assert repository_key(one) == repository_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://x.org/a", "https://x.org/A"),
        ("https://x.org/a", "https://x.org:8443/a"),
        ("https://x.org/a", "/x.org/a"),
        ("/srv/site", "/srv/Site"),
    ],
)
def test_other_repositories_have_locks_of_their_own(one: str, other: str) -> None:
    assert repository_key(one) != repository_key(other)


def test_the_lock_of_a_long_address_is_short() -> None:
    assert len(repository_key("/" + "x" * 900)) < 100
