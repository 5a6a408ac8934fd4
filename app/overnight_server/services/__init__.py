"""Classes of the original interface specification, over the same gate and transactions as all else.

docs/reference/python-services.md shows how to use them.
"""

from overnight_server.services.plans import PlanService
from overnight_server.services.queue_controller import QueueControllerV2
from overnight_server.services.task_queue import TaskQueueService
from overnight_server.services.user_locks import ConductorLockCleanup, PerUserQueueManager

__all__ = [
    "ConductorLockCleanup",
    "PerUserQueueManager",
    "PlanService",
    "QueueControllerV2",
    "TaskQueueService",
]
