"""A handler that writes its secret to every output it has."""

import base64
import hashlib
import logging
import sys
import time
from urllib.parse import quote

from overnight import Context, handler


@handler("leaky")
def leaky(context: Context) -> dict[str, object]:
    """Fail with the secret in the error, then succeed with the secret in the output."""
    secret = context.payload["login"]["token"]
    context.log(f"signing in with {secret}", token=secret, plainly=secret)
    logging.getLogger("careless").warning("signing in with %s", secret)
    print("printed", secret)  # noqa: T201 - that is the point
    print("complained", secret, file=sys.stderr, flush=True)  # noqa: T201 - the same
    context.progress(0.5, message=f"using {secret}", where={secret: [secret]})
    time.sleep(1.5)  # long enough for a heartbeat to carry the progress away
    if context.attempt == 1:
        raise PermissionError(f"{secret} was not accepted")
    return {
        "digest": hashlib.sha256(secret.encode()).hexdigest(),
        "summary": f"signed in with {secret}",
        "files_changed": [f"{secret}.txt"],
        "url": f"https://api.example/?key={quote(secret, safe='')}",
        "encoded": base64.b64encode(secret.encode()).decode(),
        secret: {"nested": [secret]},
    }
