-- Who may do what. `version` is raised by every change, whoever makes it, and read with the state of the lake: so every
-- process knows at once.
ALTER TABLE catalog
    ADD COLUMN access_version bigint NOT NULL DEFAULT 0,
    -- signs tokens, where no other key is named
    ADD COLUMN signing_key bytea NOT NULL
        DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex');

-- `grantee` is client:…, user:… or role:…; without a namespace it is about the catalog, without a name about all in it.
CREATE TABLE access_grant (
    grantee text NOT NULL,
    namespace text NOT NULL DEFAULT '',
    name text NOT NULL DEFAULT '',
    privileges text[] NOT NULL,
    granted_by text NOT NULL,
    granted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (grantee, namespace, name)
);

-- Of a secret there is a hash alone. The one before is good until `previous_until`.
CREATE TABLE client (
    client_id text PRIMARY KEY,
    secret_hash text NOT NULL,
    previous_hash text,
    previous_until timestamptz,
    -- raised when a secret is not good any more: tokens that were had for an older one are not, either
    generation bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    rotated_at timestamptz
);

CREATE FUNCTION raise_access_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE pg_catalog.format('UPDATE %I.catalog SET access_version = access_version + 1', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;
CREATE TRIGGER raise_access_version AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON access_grant
    FOR EACH STATEMENT EXECUTE FUNCTION raise_access_version();
CREATE TRIGGER raise_access_version AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON client
    FOR EACH STATEMENT EXECUTE FUNCTION raise_access_version();

-- Who changed what, was refused, or was handed something for objects.
CREATE TABLE audit (
    audit_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    made_at timestamptz NOT NULL,
    principal text NOT NULL,
    operation text NOT NULL,
    resource text[] NOT NULL,
    status integer NOT NULL,
    request_id text NOT NULL,
    address text,
    detail text
);
CREATE INDEX audit_made_at ON audit (made_at);
CREATE INDEX audit_principal ON audit (principal, audit_id);

-- What was passed for a request is written in another way from now on.
DELETE FROM request_key;
