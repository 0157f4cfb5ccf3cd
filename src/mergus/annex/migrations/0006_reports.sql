-- What clients told of their scans and commits. Kept for a while, and so many of a table; nothing depends on them.
CREATE TABLE table_report (
    report_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id bigint NOT NULL,
    kind text NOT NULL CHECK (kind IN ('scan-report', 'commit-report')),
    principal text NOT NULL,
    user_agent text NOT NULL,
    -- JSON as it is answered; not jsonb, which cannot hold every text that JSON can
    content text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX table_report_table ON table_report (table_id, report_id);
CREATE INDEX table_report_made_at ON table_report (made_at);
