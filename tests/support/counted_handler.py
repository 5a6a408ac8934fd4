"""A handler that writes a line for each of its runs, so that a test can count them."""

from pathlib import Path

from overnight import Context, handler


@handler("counted")
def counted(context: Context) -> dict[str, object]:
    """Append the task's id to the file that the payload names."""
    with Path(str(context.payload["file"])).open("a", encoding="utf-8") as record:
        record.write(f"{context.task_id}\n")
    return {"counted": True}
