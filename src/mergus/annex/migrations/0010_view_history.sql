-- Views as they were: a row holds from one snapshot of the lake to another, as DuckLake's own do. A change that DuckLake
-- has no snapshot for counts from the newest one on. How long a view of before has been as it is, nobody has noted: one
-- that is a row of DuckLake's has its times there, and any other begins now.
ALTER TABLE iceberg_view ADD COLUMN begin_snapshot bigint NOT NULL DEFAULT 0, ADD COLUMN end_snapshot bigint;
UPDATE iceberg_view SET begin_snapshot = (SELECT max(snapshot_id) FROM ducklake_snapshot) WHERE name IS NOT NULL;
ALTER TABLE iceberg_view
    ALTER COLUMN begin_snapshot DROP DEFAULT,
    DROP CONSTRAINT iceberg_view_pkey,
    ADD PRIMARY KEY (view_uuid, begin_snapshot);
DROP INDEX iceberg_view_name;
CREATE UNIQUE INDEX iceberg_view_live ON iceberg_view (view_uuid) WHERE end_snapshot IS NULL;
CREATE UNIQUE INDEX iceberg_view_name ON iceberg_view (schema_id, lower(name COLLATE "C")) WHERE end_snapshot IS NULL;
CREATE INDEX iceberg_view_then ON iceberg_view (schema_id, name);
CREATE INDEX iceberg_view_end ON iceberg_view (end_snapshot);

-- Commits that leave no snapshot of the lake behind, for as long as somebody may ask whether one was made.
CREATE TABLE commit_marker (marker text PRIMARY KEY, made_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX commit_marker_made_at ON commit_marker (made_at);
