"""The data pipeline: PySpark jobs against the catalog, on `local[*]` or on a cluster.

session → (ingest, transform, compact, stats, import, verify) → cli. A job speaks to the lake as any other client does,
through Iceberg REST; only `verify` looks at it from DuckDB as well. Spark is an extra (`mergus[spark]`), and nothing
outside this package imports it.
"""
