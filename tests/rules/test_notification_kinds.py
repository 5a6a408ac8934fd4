"""Every kind of notifications that a channel can be subscribed to is recorded by something."""

from pathlib import Path

import pytest

from overnight_server.domain.notifications import NotificationKind

SERVER = Path(__file__).parents[2] / "app" / "overnight_server"
# These only name kinds, or say what a message about one looks like.
READERS = {SERVER / "domain" / "notifications.py", SERVER / "notifier" / "contents.py"}


@pytest.mark.parametrize("kind", NotificationKind)
def test_something_records_a_notification_of_each_kind(kind: NotificationKind) -> None:
    group = f"'{kind.partition('.')[0]}.' ||"
    statements = [path.read_text() for path in SERVER.rglob("*.sql")]
    modules = [path.read_text() for path in SERVER.rglob("*.py") if path not in READERS]

    assert any(f"'{kind}'" in text or group in text for text in statements) or any(
        f"NotificationKind.{kind.name}" in text for text in modules
    ), f"nothing records {kind}: remove it, or produce it"
