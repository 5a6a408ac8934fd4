"""Requests to addresses that users name: which addresses are allowed, and how they are called."""
