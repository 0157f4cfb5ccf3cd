-- Views as Iceberg's clients know them, by a uuid that both sides know: versions, dialects, schemas, properties. One that
-- DuckDB can read is a row of ducklake_view with that uuid, and has its schema and name there. One that it cannot is
-- kept here alone, and has them here.
CREATE TABLE iceberg_view (
    view_uuid uuid PRIMARY KEY,
    schema_id bigint,
    name text,
    metadata text NOT NULL,
    CHECK ((schema_id IS NULL) = (name IS NULL))
);
CREATE UNIQUE INDEX iceberg_view_name ON iceberg_view (schema_id, lower(name COLLATE "C"));
