-- Locations that clients chose for tables, by the tables' uuids: what is left there is looked for when the tables are gone.
CREATE TABLE chosen_directory (
    table_uuid uuid NOT NULL,
    location text NOT NULL,
    PRIMARY KEY (table_uuid, location)
);
INSERT INTO chosen_directory (table_uuid, location) SELECT table_uuid, location FROM staged_table;
INSERT INTO chosen_directory (table_uuid, location)
    SELECT DISTINCT t.table_uuid, l.location FROM table_location l JOIN ducklake_table t USING (table_id)
    ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION table_promised() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE pg_catalog.format(
        'INSERT INTO %I.table_directory (table_uuid) VALUES ($1) ON CONFLICT DO NOTHING', TG_TABLE_SCHEMA)
        USING NEW.table_uuid;
    EXECUTE pg_catalog.format(
        'INSERT INTO %I.chosen_directory (table_uuid, location) VALUES ($1, $2) ON CONFLICT DO NOTHING', TG_TABLE_SCHEMA)
        USING NEW.table_uuid, NEW.location;
    RETURN NULL;
END
$$;
