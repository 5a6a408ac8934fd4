"""The house under faults: a driver that breaks everything from a seed, and checks what is left."""
