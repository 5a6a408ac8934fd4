"""One function per sweep; beat decides when each runs."""
