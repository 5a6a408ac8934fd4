"""A stack under faults: a driver injects faults from a seed and checks what is left."""
