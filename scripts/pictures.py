"""Take the pictures of the README from the demo: `scripts/pictures.py`; it needs Chromium.

The demo is the same night each time, so pictures change only when the pages do. Chromium writes
three bytes for each pixel; 256 colours are enough for a page, and make the files a third as large.
"""

import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
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
COLOURS = 256
SIGNATURE = b"\x89PNG\r\n\x1a\n"
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
    picture.write_bytes(with_few_colours(page.screenshot()))
    sys.stdout.write(f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1000} kB\n")


def with_few_colours(picture: bytes) -> bytes:
    """Return a PNG with the most frequent colours; others become the nearest of them."""
    rows = [list(zip(*[iter(row)] * 3, strict=True)) for row in pixel_rows(picture)]
    counted = Counter(colour for row in rows for colour in row)
    palette = [colour for colour, _ in counted.most_common(COLOURS)]
    places = {colour: place for place, colour in enumerate(palette)}
    for colour in counted.keys() - places.keys():
        distance = [sum((a - b) ** 2 for a, b in zip(colour, one, strict=True)) for one in palette]
        places[colour] = distance.index(min(distance))
    lines = b"".join(b"\0" + bytes(places[colour] for colour in row) for row in rows)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    parts = {
        b"IHDR": header,
        b"PLTE": bytes(value for colour in palette for value in colour),
        b"IDAT": zlib.compress(lines, 9),
        b"IEND": b"",
    }
    return SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts.items()
    )


def pixel_rows(picture: bytes) -> Iterator[bytes]:
    """Yield the rows of a PNG with 8 bits for each of red, green and blue."""
    parts: dict[bytes, bytes] = {}
    place = len(SIGNATURE)
    while place < len(picture):
        (size,) = struct.unpack_from(">I", picture, place)
        name = picture[place + 4 : place + 8]
        parts[name] = parts.get(name, b"") + picture[place + 8 : place + 8 + size]
        place += 12 + size
    width, _, depth, kind = struct.unpack_from(">IIBB", parts[b"IHDR"])
    if (depth, kind) != (8, 2):
        raise SystemExit("Chromium writes another kind of picture now")
    data, size, above = zlib.decompress(parts[b"IDAT"]), 3 * width, bytes(3 * width)
    for start in range(0, len(data), size + 1):
        above = unfiltered(data[start], bytearray(data[start + 1 : start + 1 + size]), above)
        yield above


def unfiltered(method: int, row: bytearray, above: bytes) -> bytes:
    """Return the bytes of a row, which PNG stores as differences from its neighbours."""
    for place, value in enumerate(row):
        left, corner = (row[place - 3], above[place - 3]) if place > 2 else (0, 0)  # noqa: PLR2004
        expected = (
            0,
            left,
            above[place],
            (left + above[place]) // 2,
            nearest(left, above[place], corner),
        )
        row[place] = (value + expected[method]) % 256
    return bytes(row)


def nearest(left: int, above: int, corner: int) -> int:
    """Return the neighbour that continues the slope best."""
    wanted = left + above - corner
    return min((left, above, corner), key=lambda one: abs(wanted - one))


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
