"""Explain why a task is not running: evaluate each condition of the gate by itself."""
