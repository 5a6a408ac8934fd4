"""The only package that talks to Postgres."""
