-- Objects of ours, and what clients' commits left in tables' directories, that nobody needs any more: noted when they
-- cease to be needed, in the same transaction, so that nothing has to be listed to find them.
CREATE TABLE garbage (
    table_id bigint NOT NULL,
    path text NOT NULL,
    -- a manifest list stands for all that only it leads to
    kind text NOT NULL CHECK (kind IN ('list', 'metadata', 'hint', 'client')),
    since timestamptz NOT NULL DEFAULT now(),
    -- its grace is over: no chain may be made from it any more
    doomed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (table_id, path)
);
CREATE INDEX garbage_since ON garbage (since);

-- Who deletes objects of a table against who makes a chain of it. A chain is written with a share of this row, objects
-- are deleted by whoever has all of it; `sweeps` is raised, and `sweeping` set, before the first one is deleted.
CREATE TABLE chain_turn (
    table_id bigint PRIMARY KEY,
    sweeps bigint NOT NULL DEFAULT 0,
    sweeping boolean NOT NULL DEFAULT false
);
INSERT INTO chain_turn (table_id) SELECT DISTINCT table_id FROM chain;

-- How often chains of a table gave way to others, or went: what a process remembers of them may be out of date then. Not
-- in the row above: who has a share of that must not wait for another who has one, too.
CREATE TABLE chain_replaced (table_id bigint PRIMARY KEY, times bigint NOT NULL);

CREATE FUNCTION chain_overwritten() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE pg_catalog.format(
        'INSERT INTO %I.garbage (table_id, path, kind) VALUES ($1, $2, ''list'')
         ON CONFLICT (table_id, path) DO UPDATE SET kind = excluded.kind, since = excluded.since, doomed = false',
        TG_TABLE_SCHEMA) USING OLD.table_id, OLD.manifest_list;
    EXECUTE pg_catalog.format(
        'INSERT INTO %I.chain_replaced AS r (table_id, times) VALUES ($1, 1)
         ON CONFLICT (table_id) DO UPDATE SET times = r.times + 1', TG_TABLE_SCHEMA) USING OLD.table_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER chain_overwritten AFTER UPDATE ON chain FOR EACH ROW
    WHEN (OLD.manifest_list <> NEW.manifest_list) EXECUTE FUNCTION chain_overwritten();

CREATE FUNCTION chains_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE pg_catalog.format(
        'INSERT INTO %I.garbage (table_id, path, kind) SELECT DISTINCT table_id, manifest_list, ''list'' FROM gone ORDER BY 1, 2
         ON CONFLICT (table_id, path) DO UPDATE SET kind = excluded.kind, since = excluded.since, doomed = false',
        TG_TABLE_SCHEMA);
    EXECUTE pg_catalog.format(
        'INSERT INTO %I.chain_replaced AS r (table_id, times) SELECT table_id, 1 FROM gone GROUP BY 1 ORDER BY 1
         ON CONFLICT (table_id) DO UPDATE SET times = r.times + 1', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;
CREATE TRIGGER chains_gone AFTER DELETE ON chain REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION chains_gone();

CREATE FUNCTION metadata_files_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE pg_catalog.format(
        'INSERT INTO %I.garbage (table_id, path, kind) SELECT DISTINCT table_id, location, ''metadata'' FROM gone ORDER BY 1, 2
         ON CONFLICT (table_id, path) DO UPDATE SET kind = excluded.kind, since = excluded.since, doomed = false',
        TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;
CREATE TRIGGER metadata_files_gone AFTER DELETE ON metadata_file REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION metadata_files_gone();

-- Directories that are or were of tables of this lake, by their uuids: another lake may have its own beside them. A table
-- that is registered again has the directory of the one that was dropped. Without an id it was promised to a client.
CREATE TABLE table_directory (
    table_uuid uuid NOT NULL,
    table_id bigint NOT NULL DEFAULT -1,
    PRIMARY KEY (table_uuid, table_id)
);

CREATE FUNCTION table_promised() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE pg_catalog.format(
        'INSERT INTO %I.table_directory (table_uuid) VALUES ($1) ON CONFLICT DO NOTHING', TG_TABLE_SCHEMA)
        USING NEW.table_uuid;
    RETURN NULL;
END
$$;
CREATE TRIGGER table_promised AFTER INSERT ON staged_table FOR EACH ROW EXECUTE FUNCTION table_promised();
