"""The HTTP API: `routes` holds the operations, `http` what they share."""
