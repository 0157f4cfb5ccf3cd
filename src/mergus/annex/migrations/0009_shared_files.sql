-- A file that two rows of ducklake_data_file name: main that was put back to an older snapshot lists old files anew, and
-- a table that is registered again lists what one that was dropped had. When the first of the rows expires, DuckLake
-- schedules the file for deletion, whatever other rows name it. So one that is needed still is not scheduled.
-- A path is there relative to the lake's data path; in rows of data files it may be whole, or relative to a directory
-- above it. Names of data files are unique, so the end of a path is enough to know it by: what is wrongly taken for
-- needed stays where it is, and that is all.
CREATE FUNCTION keep_shared_files() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[] := string_to_array(NEW.path, '/');
    spellings text[];
    needed boolean;
BEGIN
    SELECT array_agg(array_to_string(parts[i:], '/')) INTO spellings FROM generate_subscripts(parts, 1) AS i;
    EXECUTE format(
        'SELECT EXISTS (SELECT FROM %1$I.ducklake_data_file f
                        WHERE f.data_file_id <> $1
                          AND f.path = ANY ($2 || (SELECT value || $3 FROM %1$I.ducklake_metadata
                                                   WHERE key = ''data_path'' AND scope IS NULL))
                          AND (f.end_snapshot IS NULL
                               OR EXISTS (SELECT FROM %1$I.ducklake_snapshot s
                                          WHERE s.snapshot_id >= f.begin_snapshot
                                            AND s.snapshot_id < f.end_snapshot)))', TG_TABLE_SCHEMA)
    INTO needed USING NEW.data_file_id, spellings, NEW.path;
    IF needed THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END
$$;
