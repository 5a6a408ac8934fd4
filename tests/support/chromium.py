"""A tab of Chromium that remembers everything that went wrong in it."""

from dataclasses import dataclass, field

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, ConsoleMessage, Page

#: Without the flags on background work, Chromium looks for servers of its maker at every start.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: Counts layout shifts and reports of the policy from the first byte of every page.
WATCH = """
window.shifts = 0;
window.reports = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
document.addEventListener("securitypolicyviolation", (event) => {
  window.reports.push(`${event.violatedDirective} ${event.blockedURI}`);
});
"""
#: Tables that are wider than their box and cannot be scrolled.
CLIPPED = """
[...document.querySelectorAll(".list")]
  .filter((box) => box.scrollWidth > box.clientWidth + 1)
  .filter((box) => !["auto", "scroll"].includes(getComputedStyle(box).overflowX))
  .map((box) => `${box.className} ${box.scrollWidth} > ${box.clientWidth}`)
"""
SERIOUS = {"serious", "critical"}


@dataclass
class Opened:
    """A tab at the dashboard, and its complaints: errors, dialogs, reports of the policy."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def sign_in(self, key: str) -> None:
        """Sign in with a key."""
        self.page.goto(f"{self.url}/sign-in")
        self.page.fill("#key", key)
        self.page.click("button.main")
        self.page.wait_for_load_state()

    def open(self, path: str) -> None:
        """Open a screen and wait until its scripts have run."""
        response = self.page.goto(f"{self.url}{path}")
        if response is None or response.status != 200:
            self.complaints.append(f"{path}: {response and response.status}")
        self.page.wait_for_load_state("load")

    def check(self, path: str) -> None:
        """Note what is wrong with the page that is open."""
        page = self.page
        for report in page.evaluate("window.reports"):
            self.complaints.append(f"{path}: policy {report}")
        shifts = page.evaluate("window.shifts")
        if shifts:
            self.complaints.append(f"{path}: layout shift {shifts}")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth + 1"):
            self.complaints.append(f"{path}: scrolls sideways")
        for clipped in page.evaluate(CLIPPED):
            self.complaints.append(f"{path}: clipped {clipped}")

    def check_accessibility(self, path: str) -> None:
        """Note what axe finds serious; the policy of the page does not hold for its script."""
        # `evaluate` runs in the page, so trusted types would refuse what axe does to its own nodes.
        for violation in Axe().run(self.page).response["violations"]:
            if violation["impact"] in SERIOUS:
                nodes = [node["html"][:160] for node in violation["nodes"][:3]]
                self.complaints.append(f"{path}: axe {violation['id']} {nodes}")


def watch(context: BrowserContext, url: str) -> Opened:
    """Open a tab and remember what it complains about."""
    context.add_init_script(WATCH)
    page = context.new_page()
    tab = Opened(page, url)

    def on_console(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            tab.complaints.append(f"{page.url}: console {message.text}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: tab.complaints.append(f"{page.url}: {error}"))
    page.on("dialog", lambda dialog: tab.complaints.append(f"{page.url}: dialog {dialog.message}"))
    return tab
