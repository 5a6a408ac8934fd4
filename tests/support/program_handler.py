"""Handlers that start programs, and leave them behind in every way; or use memory."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from overnight import Context, handler

# Prints its pid and lives for long; its parent may end, so nobody but the kernel knows it then.
PROGRAM = """
    import os, signal, sys, time
    how, place = sys.argv[1:]
    if how == "setsid":
        os.setsid()
    if how == "double_fork":
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(f"{place}/{how}.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{place}/{how}.part", f"{place}/{how}")
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
"""
WAYS = ("plain", "setsid", "double_fork", "stopped")


@handler("programs")
def programs(ctx: Context) -> object:
    """Start a program in each way, wait until all run, then go on as `then` says."""
    place = Path(ctx.payload["place"])
    started = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(PROGRAM), how, str(place)])
        for how in WAYS
    ]
    while not all((place / how).exists() for how in WAYS):
        time.sleep(0.01)
    (place / "run").write_text(str(os.getpid()))
    match ctx.payload["then"]:
        case "return":
            return {"started": len(started)}
        case "raise":
            raise RuntimeError("its programs are left behind")
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(60)


@handler("allocate")
def allocate(ctx: Context) -> object:
    """Use `mb` of memory and keep it, in this process or in a program; go on as `then` says."""
    size = int(ctx.payload["mb"]) * 1024 * 1024
    if ctx.payload.get("where") == "program":
        code = f"held = b'x' * {size}; import time; time.sleep(600)"
        subprocess.run([sys.executable, "-c", code], check=False)
    KEPT.append(b"x" * size)
    if ctx.payload.get("then") == "stay":
        time.sleep(600)
    return os.getpid()


KEPT: list[bytes] = []
