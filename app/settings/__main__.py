"""Write the reference page of settings: `python -m app.settings`."""

from app.settings.page import PAGE, page

PAGE.write_text(page(), encoding="utf-8")
