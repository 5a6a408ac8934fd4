"""The routes, one module per resource: each parses a request and calls one function."""
