"""Take the pictures of the README from the demo: `scripts/pictures.py`; it needs Chromium.

The demo is the same night each time, so pictures change only when the pages do.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTH, HEIGHT = 1200, 760
LINK = re.compile(r"As ada\s+(\S+)")


def main() -> None:
    """Play the demo, open its pages, and write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    with demo() as link, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=[*FLAGS])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(link)
        base = link.partition("/sign-in")[0]
        take(page, f"{base}/", "morning")
        page.goto(f"{base}/tasks")
        page.get_by_role("link", name="Port the payment webhooks").first.click()
        take(page, page.url, "task")
        browser.close()


def take(page: Page, address: str, name: str) -> None:
    """Write the picture of one page."""
    page.goto(address)
    # A page that is live never comes to rest, so only the load is awaited.
    page.wait_for_load_state("load")
    picture = FOLDER / f"{name}.png"
    page.screenshot(path=picture)
    sys.stdout.write(f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1000} kB\n")


@contextmanager
def demo() -> Iterator[str]:
    """Run a demo for the length of a block; yield the link that signs in as its user."""
    with tempfile.TemporaryDirectory() as home:
        # Passable, so that Postgres can reach its data as another user when root runs this.
        Path(home).chmod(0o711)
        command = [sys.executable, "-m", "overnight_server.cli.main", "demo"]
        process = subprocess.Popen(
            command,
            env={**os.environ, "OVERNIGHT_HOME": home, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            for line in process.stdout or ():
                if found := LINK.search(line):
                    yield found[1]
                    break
            else:
                raise SystemExit("the demo ended before its night was over")
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


if __name__ == "__main__":
    main()
