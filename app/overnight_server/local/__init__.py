"""The whole service on one machine: embedded Postgres and Redis, and a supervisor for all."""
