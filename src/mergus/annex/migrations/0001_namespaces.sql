-- One row: what every process that serves this lake must share.
CREATE TABLE catalog (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- signs page tokens, so that any process can check what another handed out
    token_key bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO catalog (token_key)
VALUES (decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));

-- DuckLake's schemas have no properties.
CREATE TABLE namespace_property (
    schema_id bigint NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (schema_id, key)
);

-- Fires for every commit, whoever makes it. Names are fixed at creation: a writer's search_path is not ours.
CREATE FUNCTION notify_snapshot() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.pg_notify(TG_ARGV[0], NEW.snapshot_id::text);
    RETURN NULL;
END
$$;
