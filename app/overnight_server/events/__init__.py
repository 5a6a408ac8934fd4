"""Telling others what happened, after the commit."""
