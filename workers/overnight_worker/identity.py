"""The id of this worker, unique among all workers of all machines and all restarts."""

import os
import socket
from typing import Final
from uuid import uuid4

# Made once in the main process and inherited by its pool processes. The last part is new at every
# start, because host name and process id repeat in containers.
WORKER_ID: Final = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:12]}"
