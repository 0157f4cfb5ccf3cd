-- The sort order that a client's file was written in, by the table's number of it; 0 is that of no sorting. DuckLake has
-- no room for it.
ALTER TABLE committed_file ADD COLUMN sort_order_id integer NOT NULL DEFAULT 0;
