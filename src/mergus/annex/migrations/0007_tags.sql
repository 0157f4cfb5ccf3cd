-- Names for snapshots of the whole lake. A snapshot that has one is not to be expired by us.
CREATE TABLE catalog_tag (
    name text PRIMARY KEY,
    snapshot_id bigint NOT NULL,
    message text,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
