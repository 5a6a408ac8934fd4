"""Passes one argument of 200 KB and many of 100 KB."""

import os

for arguments in (["true", "x" * 200_000], ["true", *["x" * 100_000] * 100]):
    pid = os.fork()
    if pid == 0:
        try:
            os.execvp("true", arguments)
        except OSError as error:
            print("refused", error.strerror, flush=True)
            os._exit(0)
    os.waitpid(pid, 0)
