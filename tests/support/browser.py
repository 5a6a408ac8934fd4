"""A browser without scripts: it keeps cookies, sends forms with their hidden fields, reads HTML."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urlencode

from fastapi.testclient import TestClient
from httpx2 import Response

from overnight_server.api.main import create_app
from overnight_server.settings import load
from tests.support import logins
from tests.support.api_user import DEAD_REDIS, NO_FILE

ORIGIN = "http://localhost"
VOID = {"meta", "link", "input", "br", "use", "rect", "line", "circle", "path", "img", "hr", "col"}


class Page(HTMLParser):
    """A page as its text, links, forms and faults of its markup."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.faults: list[str] = []
        self.ids: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self._words: list[str] = []
        self._wanted: list[str] = []
        self._select = ""
        self._area = ""
        self.headings: list[int] = []
        self.feed(text)
        self.faults += [f"unclosed <{tag}>" for tag in self._open]
        self.faults += [f"id {one} twice" for one in set(self.ids) if self.ids.count(one) > 1]
        self.faults += [f"no id {one}" for one in self._wanted if one not in self.ids]

    @property
    def text(self) -> str:
        """The words of the page, separated by one space."""
        return " ".join(" ".join(self._words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read one element."""
        values = {name: value or "" for name, value in attrs}
        if tag not in VOID:
            self._open.append(tag)
        self._check(tag, values)
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "form":
            self.forms.append({"action": values.get("action", "")})
        if tag in {"input", "button"} and "name" in values and self.forms:
            self.forms[-1].setdefault(values["name"], values.get("value", ""))
        if tag == "select" and self.forms:
            self._select = values.get("name", "")
        if tag == "option" and self._select:
            # The first option is chosen unless another one is.
            if "selected" in values:
                self.forms[-1][self._select] = values.get("value", "")
            self.forms[-1].setdefault(self._select, values.get("value", ""))
        if tag == "textarea" and self.forms:
            self._area = values.get("name", "")
            self.forms[-1][self._area] = ""
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def _check(self, tag: str, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            if name == "style" or name.startswith("on"):
                self.faults.append(f"<{tag}> has {name}=")
            if name in {"src", "href", "action"} and re.match(r"(?i)\s*(\w+:|//)", value):
                self.faults.append(f"<{tag}> leads outside: {value}")
            if name in {"aria-labelledby", "for"}:
                self._wanted += value.split()
        if values.get("tabindex") == "0" and not {"aria-label", "aria-labelledby"} & set(values):
            self.faults.append(f"<{tag}> takes the focus and has no name")
        if tag == "button" and "role" in values:
            self.faults.append(f"a button with the role {values['role']}")
        if tag == "style" or (tag == "script" and "src" not in values):
            self.faults.append(f"inline <{tag}>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read an element that is closed at once."""
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Close an element."""
        if tag in VOID:
            return
        if tag == "select":
            self._select = ""
        if tag == "textarea":
            self._area = ""
        if not self._open or self._open[-1] != tag:
            inner = self._open[-1] if self._open else "nothing"
            self.faults.append(f"</{tag}> closes <{inner}> in line {self.getpos()[0]}")
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        """Keep the words."""
        self._words.append(data)
        if self._area:
            self.forms[-1][self._area] += data

    def form(self, action: str) -> dict[str, str]:
        """Return the fields of the form with this address."""
        found = [form for form in self.forms if form["action"] == action]
        assert found, f"no form {action}, only {[form['action'] for form in self.forms]}"
        return {name: value for name, value in found[0].items() if name != "action"}


@dataclass
class Browser:
    """A browser at the dashboard; `last` is the response that it shows."""

    http: TestClient
    last: Response | None = None

    def open(self, path: str, status: int = 200) -> Page:
        """Open an address, follow redirects, and read the page."""
        self.last = self.http.get(path, headers={"Accept": "text/html"})
        assert self.last.status_code == status, (self.last.status_code, self.last.text[-3000:])
        return self._read()

    def send(self, path: str, fields: Mapping[str, str], **headers: str) -> Response:
        """Send a form as a page of this site does; redirects are not followed."""
        self.last = self.http.post(
            path,
            content=urlencode(fields, doseq=True),
            follow_redirects=False,
            headers={
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "text/html",
                "Origin": ORIGIN,
                "Sec-Fetch-Site": "same-origin",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
        )
        return self.last

    def press(self, page: Page, action: str, **fields: str) -> Page:
        """Send a form of a page, and read the page that follows."""
        response = self.send(action, {**page.form(action), **fields})
        assert response.status_code == 303, (response.status_code, response.text[-3000:])
        return self.open(response.headers["location"])

    def sign_in(self, key: str) -> Page:
        """Sign in with a key."""
        page = self.open("/sign-in")
        assert page.source
        response = self.send("/sign-in", {"key": key, "back": "/me"})
        assert response.status_code == 303, response.text[-3000:]
        return self.open(response.headers["location"])

    def toast(self) -> str:
        """Return what the last page says of the act before it."""
        assert self.last is not None
        match = re.search(r'id="toast"[^>]*><span>(.*?)</span>', self.last.text, re.DOTALL)
        return unescape(match[1]) if match else ""

    def _read(self) -> Page:
        assert self.last is not None
        page = Page(self.last.text)
        assert not page.faults, page.faults
        assert page.headings.count(1) == 1, page.headings
        # Each heading is at most one level below the one before; none stands before the title.
        steps = zip([0, *page.headings], page.headings, strict=False)
        assert all(level <= above + 1 for above, level in steps), page.headings
        return page


@contextmanager
def serve_dashboard(database_url: str, **environ: str) -> Iterator[Browser]:
    """Serve the API with the dashboard on a test's database to a browser."""
    settings = load(
        {
            "OVERNIGHT_DATABASE_URL": logins.for_api(database_url),
            "OVERNIGHT_REDIS_URL": DEAD_REDIS,
            **environ,
        },
        dotenv=NO_FILE,
    )
    with TestClient(create_app(settings), base_url=ORIGIN, raise_server_exceptions=False) as http:
        yield Browser(http)
