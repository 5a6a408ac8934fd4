"""The agent driver: it sends tasks to HTTP agents and follows them until they end."""
