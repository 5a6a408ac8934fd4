"""What our worker runs in a benchmark: nothing, and a mark that it did."""

from benchmarks.start_marks import mark
from overnight import Context, handler


@handler("noop")
def noop(ctx: Context) -> object:
    """Do nothing."""
    mark(int(ctx.payload.get("label", 0)))
    return None
