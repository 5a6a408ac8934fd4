"""The event log: reading it in order, and the live feed for event streams."""
