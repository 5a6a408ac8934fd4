"""The gate: decides which ready tasks may start now, and claims them."""
