"""The dashboard: pages for people, served by the API process at `/`."""
