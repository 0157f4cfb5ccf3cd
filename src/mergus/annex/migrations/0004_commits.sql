-- What Iceberg's clients write and DuckLake has no room for. All of it hangs on ids of DuckLake's that are never used
-- twice, and changes in the transaction that changes the rows it is about.

-- How the fields of a table are arranged from a snapshot on: DuckLake orders columns by their ids, and has no
-- identifier fields. `schema` is a whole Iceberg schema; only its order and its identifier fields count.
CREATE TABLE table_arrangement (
    table_id bigint NOT NULL,
    begin_snapshot bigint NOT NULL,
    schema text NOT NULL,
    PRIMARY KEY (table_id, begin_snapshot)
);

-- Whether a schema is listed: true if a client added it, false if one removed it, else as the table's history has it.
ALTER TABLE table_schema ADD COLUMN listed boolean;

-- Partition specs as clients wrote them, by the clients' numbers, and which of DuckLake's partitionings were made for
-- them. `since` is the first id of the catalog that was free then: partitionings with a smaller one are older.
CREATE TABLE table_spec (
    table_id bigint NOT NULL,
    spec_id bigint NOT NULL,
    since bigint NOT NULL,
    fields text NOT NULL,
    removed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (table_id, spec_id)
);
CREATE TABLE table_partitioning (
    table_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    spec_id bigint NOT NULL,
    PRIMARY KEY (table_id, partition_id)
);

-- The partition tuple of a file that a client committed, exactly; DuckLake has what it can express of it.
CREATE TABLE committed_file (
    data_file_id bigint PRIMARY KEY,
    spec_id bigint NOT NULL,
    partition jsonb NOT NULL
);

-- Sort orders as clients wrote them, and which of them was the default from a snapshot on.
CREATE TABLE table_sort_order (
    table_id bigint NOT NULL,
    order_id bigint NOT NULL,
    fields text NOT NULL,
    PRIMARY KEY (table_id, order_id)
);
CREATE TABLE table_default_order (
    table_id bigint NOT NULL,
    begin_snapshot bigint NOT NULL,
    order_id bigint NOT NULL,
    PRIMARY KEY (table_id, begin_snapshot)
);

-- Tags, by snapshots of the lake; and what somebody asked for about keeping main, which is no row's snapshot.
CREATE TABLE table_ref (
    table_id bigint NOT NULL,
    name text NOT NULL,
    snapshot_id bigint,
    retention jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (table_id, name)
);

-- Snapshots of the lake that a table does not list any more, though the lake has them.
CREATE TABLE removed_snapshot (
    table_id bigint NOT NULL,
    snapshot_id bigint NOT NULL,
    PRIMARY KEY (table_id, snapshot_id)
);

-- Statistics files that clients made, by snapshots of the lake.
CREATE TABLE table_statistics (
    table_id bigint NOT NULL,
    kind text NOT NULL CHECK (kind IN ('statistics', 'partition-statistics')),
    snapshot_id bigint NOT NULL,
    content text NOT NULL,
    PRIMARY KEY (table_id, kind, snapshot_id)
);

-- Where clients put new files of a table, if not where all tables have theirs.
CREATE TABLE table_location (
    table_id bigint PRIMARY KEY,
    location text NOT NULL
);

-- Tables that a client was promised and has not committed yet.
CREATE TABLE staged_table (
    table_uuid uuid PRIMARY KEY,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    location text NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT now()
);
