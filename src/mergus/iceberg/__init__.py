"""Iceberg as pure functions: no I/O, nothing of ours but errors. Names follow the specification."""
