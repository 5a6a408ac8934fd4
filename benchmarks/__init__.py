"""Benchmarks: one module for each question, with a function `measure`."""
