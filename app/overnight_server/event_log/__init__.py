"""The event log: reading it in order, and following it."""
