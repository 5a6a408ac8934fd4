"""The demo: one night of forty tasks, played by the real gate with a clock that is moved."""
