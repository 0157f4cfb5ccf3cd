-- Requests that carried an Idempotency-Key and have their final answer. A change and the row of its key are one
-- transaction; a request that is under way has no row.
CREATE TABLE request_key (
    key uuid PRIMARY KEY,
    operation text NOT NULL,
    principal text NOT NULL,
    -- SHA-256 of method, path, query and body
    payload bytea NOT NULL,
    -- what the principal was allowed to act on: a list of namespaces, null for the catalog as a whole
    resources jsonb NOT NULL,
    status integer NOT NULL,
    -- null if there is none, or if it is made again by loading the table
    body bytea,
    table_id bigint,
    made_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX request_key_made_at ON request_key (made_at);
