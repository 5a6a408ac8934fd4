"""Agents that run outside the deployment and claim tasks over HTTP."""
