"""Best-effort wake-ups over Redis, and the long poll of pull agents."""
