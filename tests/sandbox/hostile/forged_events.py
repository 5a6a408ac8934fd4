"""Writes to the event descriptor and to every other number, and tries to read from it."""

import os

os.write(int(os.environ["OVERNIGHT_EVENTS_FD"]), b'{"result": 1}\n')
for number in range(4, 64):
    try:
        os.write(number, b"exit 0 0")
        print("ESCAPED: wrote to descriptor", number)
    except OSError:
        pass
