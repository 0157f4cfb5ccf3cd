"""The DuckLake catalog in Postgres: the only place with SQL on `ducklake_*` tables."""
