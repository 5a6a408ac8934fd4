"""Write the reference page of settings: `python -m overnight_server.settings`."""

from overnight_server.settings.page import PAGE, page

PAGE.write_text(page(), encoding="utf-8")
