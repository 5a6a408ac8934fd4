"""Best-effort wake-ups over Redis: who waits for work, and how they learn that there is some."""
