"""Write the two files of a new migration: `scripts/migration.py "let a task have a colour"`."""

import sys
from pathlib import Path

from alembic import command
from alembic.config import Config

from overnight_server.store import migrate


def main(message: str) -> None:
    """Take the next number; the module runs the SQL file that is beside it."""
    config = Config()
    config.set_main_option("script_location", str(migrate.SCRIPTS))
    message = message.strip().rstrip(".")
    number = f"{int(migrate.head()) + 1:04d}"
    made = command.revision(config, message[:1].upper() + message[1:], rev_id=number)
    if made is None or isinstance(made, list):
        raise SystemExit("no migration was made")
    module = Path(made.path)
    module.with_suffix(".sql").write_text(f"-- {message}.\n", encoding="utf-8")
    sys.stdout.write(f"{module}\n{module.with_suffix('.sql')}\n")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or sys.exit("usage: scripts/migration.py WHAT IT DOES"))
