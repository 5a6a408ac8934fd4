"""Read services: each returns models of `overnight.models`, for the API, the CLI and reports."""
