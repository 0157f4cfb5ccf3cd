"""The wire: one module per resource. No SQL and no object I/O; what an operation does is in `catalog/`."""
