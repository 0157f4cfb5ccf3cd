-- Commits that their writers wish to be made once, by the key that they gave them: remembered for as long as there is
-- the table, also when their snapshots are gone.
CREATE TABLE committed_once (
    table_id bigint NOT NULL,
    key text NOT NULL,
    -- as Iceberg knows it
    snapshot_id bigint NOT NULL,
    PRIMARY KEY (table_id, key)
);
