-- One row: how far the listener has got, and what its leader says of itself.
CREATE TABLE listener (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- up to this snapshot every table is on storage, but for those in listener_failure. A snapshot id comes again when
    -- Postgres is restored from a backup: the time tells the two apart
    done_id bigint,
    done_time timestamptz,
    -- and whatever is no snapshot, up to this epoch
    done_epoch bigint,
    leader text,
    leader_since timestamptz,
    report jsonb,
    reported_at timestamptz
);
INSERT INTO listener DEFAULT VALUES;

-- Tables that could not be put on storage: what comes after them does not wait, and whoever leads tries them again.
CREATE TABLE listener_failure (
    table_id bigint PRIMARY KEY,
    -- the type of the error as clients would be told
    kind text NOT NULL,
    message text NOT NULL,
    attempts integer NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    tried_at timestamptz NOT NULL DEFAULT now()
);
