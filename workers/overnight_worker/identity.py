"""Who this worker is, told apart from every other boot on every other machine."""

import os
import socket
from typing import Final
from uuid import uuid4

# Made once in the main process and inherited by its children. The last part is new with every
# boot, because host name and process id repeat in containers.
WORKER_ID: Final = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:12]}"
