"""A handler that ends as it is told, with a program beside it, for tests of every end of a run."""

import subprocess
import time

from overnight import Context, handler


@handler("trial")
def trial(ctx: Context) -> object:
    """Store the key of the run; then fail, or wait with a program if this is the first run."""
    ctx.artifact("key", ctx.idempotency_key)
    match ctx.payload["then"]:
        case "fail":
            raise RuntimeError("it fails on purpose")
        case "wait" if ctx.epoch == 1:
            subprocess.Popen(["setsid", "sleep", str(ctx.payload["number"])])
            while True:
                ctx.check()
                time.sleep(0.05)
    return {"key": ctx.idempotency_key}
