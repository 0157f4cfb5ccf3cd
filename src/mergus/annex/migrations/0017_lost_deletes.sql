-- DuckLake does not see that a delete of a file's row that is kept in Postgres (ducklake_inlined_delete_<table>) and a
-- merge or rewrite of that file exclude each other: whichever commits last, the row comes back. Until now such commits
-- got second words, which the other looks for (0013): every session saw them in snapshots(), and they also ended
-- commits that lose nothing. From now on the later commit's own rows are checked, and no word is added.
--
-- - A commit sees all commits before it. It begins with the next number in ducklake_snapshot; one that began with an
--   older state fails there, by the primary key, and DuckLake tries again in a new Postgres transaction.
-- - A merge deletes the rows of its files, live ones, and does not take files with such deletes: if one is there, it
--   came in between. (An expiry deletes rows of files that have ended.)
-- - The words are the last row of a commit, so what else it wrote is there when they come.
-- - DuckLake makes a commit again, ten times, if the error has one of the words that the name of a table is searched
--   for below. It would fail each time, so the message has none of them, nor has the name of this function, which
--   Postgres tells with it.
CREATE FUNCTION refuse_lost_deletes() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    words text;
    committed bigint;
    touched record;
    deletes text;
    is_lost boolean;
    named text;
BEGIN
    -- a new row of ducklake_snapshot_changes, or `gone` of ducklake_data_file
    IF TG_LEVEL = 'ROW' THEN
        -- without names, which are quoted
        words := pg_catalog.regexp_replace(NEW.changes_made, '"[^"]*"', '', 'g');
        committed := NEW.snapshot_id;
        IF words !~* '(inlined|rewrite)_delete:' THEN
            RETURN NEW;
        END IF;
    END IF;
    FOR touched IN EXECUTE
        CASE TG_LEVEL
        WHEN 'ROW' THEN
            'SELECT DISTINCT pg_catalog.lower(found.parts[1]) AS word, found.parts[2]::bigint AS table_id
             FROM pg_catalog.regexp_matches(
                 $1, ''(?:^|,)(inlined_delete|rewrite_delete):(\d+)(?=,|$)'', ''gi'') AS found(parts)'
        ELSE 'SELECT DISTINCT ''merge_adjacent'' AS word, table_id FROM gone WHERE end_snapshot IS NULL AND $1 IS NULL'
        END USING words
    LOOP
        deletes := pg_catalog.format('%I.%I', TG_TABLE_SCHEMA, 'ducklake_inlined_delete_' || touched.table_id);
        CONTINUE WHEN pg_catalog.to_regclass(deletes) IS NULL;
        CASE touched.word
        WHEN 'inlined_delete' THEN
            -- a file of this delete is gone by a merge, or has ended by a rewrite: the row is in another one
            EXECUTE pg_catalog.format(
                'SELECT EXISTS (
                     SELECT FROM %2$s d
                     LEFT JOIN %1$I.ducklake_data_file f ON f.table_id = $2 AND f.data_file_id = d.file_id
                     WHERE d.begin_snapshot = $1
                       AND (f.data_file_id IS NULL
                            OR EXISTS (SELECT FROM %1$I.ducklake_snapshot_changes c
                                       WHERE c.snapshot_id = f.end_snapshot
                                         AND c.changes_made ~* (''(^|,)rewrite_delete:'' || $2 || ''(,|$)''))))',
                TG_TABLE_SCHEMA, deletes) INTO is_lost USING committed, touched.table_id;
        WHEN 'rewrite_delete' THEN
            -- more rows than the files had that it is made from
            EXECUTE pg_catalog.format(
                'SELECT (SELECT sum(record_count) FROM %1$I.ducklake_data_file
                         WHERE table_id = $2 AND begin_snapshot = $1)
                      > (SELECT sum(f.record_count - coalesce(in_files.deleted, 0) - coalesce(inlined.deleted, 0))
                         FROM %1$I.ducklake_data_file f
                         LEFT JOIN (SELECT data_file_id, sum(delete_count) AS deleted FROM %1$I.ducklake_delete_file
                                    WHERE table_id = $2 AND (end_snapshot IS NULL OR end_snapshot = $1)
                                    GROUP BY 1) in_files USING (data_file_id)
                         LEFT JOIN (SELECT file_id, count(*) AS deleted FROM %2$s GROUP BY 1) inlined
                             ON inlined.file_id = f.data_file_id
                         WHERE f.table_id = $2 AND f.end_snapshot = $1)',
                TG_TABLE_SCHEMA, deletes) INTO is_lost USING committed, touched.table_id;
        ELSE
            EXECUTE pg_catalog.format(
                'SELECT EXISTS (SELECT FROM gone JOIN %s d ON d.file_id = gone.data_file_id
                                WHERE gone.table_id = $1 AND gone.end_snapshot IS NULL)',
                deletes) INTO is_lost USING touched.table_id;
        END CASE;
        CONTINUE WHEN is_lost IS NOT TRUE;
        EXECUTE pg_catalog.format(
            'SELECT pg_catalog.format(''"%%s"."%%s"'', s.schema_name, t.table_name)
             FROM %1$I.ducklake_table t JOIN %1$I.ducklake_schema s USING (schema_id)
             WHERE t.table_id = $1 AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL', TG_TABLE_SCHEMA)
            INTO named USING touched.table_id;
        IF named IS NULL OR named ~* 'primary key|unique|conflict|concurrent' THEN
            named := pg_catalog.format('with index "%s"', touched.table_id);
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'serialization_failure', MESSAGE = CASE touched.word
            WHEN 'inlined_delete' THEN pg_catalog.format(
                'Transaction cannot commit - attempting to delete from table %s - but another transaction has compacted '
                'it, and the delete would be lost. Run the transaction again', named)
            ELSE pg_catalog.format(
                'Transaction cannot commit - attempting to compact table %s - but another transaction has deleted from '
                'it, and the deleted rows would come back. Compact the table again', named)
            END;
    END LOOP;
    IF TG_LEVEL = 'ROW' THEN
        RETURN NEW;
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION refuse_lost_deletes() FROM PUBLIC;

-- Under its old name: to drop a trigger waits for everybody who reads the table, and holds up who comes after.
CREATE OR REPLACE TRIGGER mergus_tell_conflicts BEFORE INSERT ON ducklake_snapshot_changes FOR EACH ROW
    EXECUTE FUNCTION refuse_lost_deletes();
DROP FUNCTION tell_conflicts();

-- Second words go. DuckLake never writes these two words after those, so they are the old trigger's; names are quoted,
-- and a text that ends in words without a quote does not end in a name.
UPDATE ducklake_snapshot_changes SET changes_made = pg_catalog.regexp_replace(
    changes_made,
    '((?:merge_adjacent|rewrite_delete|inlined_delete|inline_flush):\d+)(?:,(?:inserted_into_table|deleted_from_table):\d+)+$',
    '\1', 'i')
WHERE changes_made ~* '(merge_adjacent|rewrite_delete|inlined_delete|inline_flush):\d+(,(inserted_into_table|deleted_from_table):\d+)+$';
