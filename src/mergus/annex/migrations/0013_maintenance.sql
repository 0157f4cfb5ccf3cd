-- DuckLake does not see that a delete that is kept in Postgres and a merge or rewrite of the same file exclude each other:
-- whichever commits last, the row comes back. Each of its sessions looks for conflicts in the words of those that were
-- first, so what was done is told by a second word, one that the other looks for: a merge or rewrite is called an insert
-- as well (a delete in Postgres gives way to it), and a delete in Postgres a delete (a merge or rewrite gives way to it).
CREATE FUNCTION tell_conflicts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changes_made := NEW.changes_made || coalesce((
        SELECT pg_catalog.string_agg(DISTINCT ',' || also.word || ':' || told.parts[2], '')
        FROM pg_catalog.regexp_matches(
                 NEW.changes_made, '(?:^|,)(merge_adjacent|rewrite_delete|inlined_delete):(\d+)(?=,|$)', 'gi'
             ) AS told(parts),
             LATERAL (SELECT CASE pg_catalog.lower(told.parts[1]) WHEN 'inlined_delete' THEN 'deleted_from_table'
                                                                  ELSE 'inserted_into_table' END) AS also(word)
        WHERE NEW.changes_made !~* ('(^|,)' || also.word || ':' || told.parts[2] || '(,|$)')), '');
    RETURN NEW;
END
$$;
REVOKE ALL ON FUNCTION tell_conflicts() FROM PUBLIC;

-- Work that somebody asked for and that any process may do. One that is running is held by a session lock on its number:
-- when the lock is free, whoever had it is gone, and another goes on.
CREATE TABLE job (
    job_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    -- what it is about, by DuckLake's ids; null is all of them
    schema_id bigint,
    table_id bigint,
    options jsonb NOT NULL,
    asked_by text NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT now(),
    state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'running', 'done', 'failed', 'cancelled')),
    -- not before
    due_at timestamptz NOT NULL DEFAULT now(),
    attempts integer NOT NULL DEFAULT 0,
    is_cancelled boolean NOT NULL DEFAULT false,
    worker text,
    started_at timestamptz,
    ended_at timestamptz,
    -- how far it is, and at the end what it came to
    progress jsonb NOT NULL DEFAULT '{}',
    error text
);
CREATE INDEX job_open ON job (due_at) WHERE state IN ('waiting', 'running');
CREATE INDEX job_ended ON job (ended_at) WHERE ended_at IS NOT NULL;
-- Who asks for what is waiting or being done already gets that.
CREATE UNIQUE INDEX job_once ON job (kind, coalesce(schema_id, -1), coalesce(table_id, -1), options)
    WHERE state IN ('waiting', 'running');

-- What a job did to each table: who goes on with it does not do it again.
CREATE TABLE job_table (
    job_id bigint NOT NULL REFERENCES job ON DELETE CASCADE,
    table_id bigint NOT NULL,
    result jsonb NOT NULL,
    PRIMARY KEY (job_id, table_id)
);
