-- What Iceberg tables have and DuckLake's have not. Reserved: `mergus.format-version`.
CREATE TABLE table_property (
    table_id bigint NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (table_id, key)
);

-- Every schema that a table has been seen with. DuckLake forgets columns when snapshots expire; ids that were handed out
-- to clients keep their meaning.
CREATE TABLE table_schema (
    table_id bigint NOT NULL,
    schema_id integer NOT NULL,
    fields text NOT NULL,
    PRIMARY KEY (table_id, schema_id)
);

-- The manifest list of a table at a snapshot: a cache of what can be made again from DuckLake's rows.
CREATE TABLE chain (
    table_id bigint NOT NULL,
    format_version smallint NOT NULL,
    snapshot_id bigint NOT NULL,
    -- a snapshot id comes again when Postgres is restored from a backup: the time tells the two apart
    snapshot_time timestamptz NOT NULL,
    -- the newest snapshot when the rows were read, and the first file id that was free then: what came later, and
    -- rewrote history, is not in it
    as_of bigint NOT NULL,
    file_horizon bigint NOT NULL,
    -- which partition specs its manifests may use
    layout text NOT NULL,
    manifest_list text NOT NULL,
    counts jsonb NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (table_id, format_version, snapshot_id)
);

-- What was found by looking into a data file: a cache of what never changes. `fact` is read by file_facts.py alone.
CREATE TABLE file_fact (
    data_file_id bigint NOT NULL,
    kind text NOT NULL,
    -- a file id comes again when Postgres is restored from a backup: the path tells the two apart
    path text NOT NULL,
    fact text NOT NULL,
    PRIMARY KEY (data_file_id, kind)
);

-- Versions of a table's metadata.json, for `metadata-location` and the metadata log.
CREATE TABLE metadata_file (
    table_id bigint NOT NULL,
    version integer NOT NULL,
    location text NOT NULL,
    updated_ms bigint NOT NULL,
    PRIMARY KEY (table_id, version)
);

-- Raised by whatever changes a table as Iceberg sees it and adds no snapshot: expiry, a property of ours.
ALTER TABLE catalog ADD COLUMN epoch bigint NOT NULL DEFAULT 0;

-- Runs as its owner: a DuckDB session's role need not know our tables.
CREATE FUNCTION raise_epoch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('UPDATE %I.catalog SET epoch = epoch + 1', TG_ARGV[0]);
    RETURN NULL;
END
$$;
