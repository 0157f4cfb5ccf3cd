"""Roles in Postgres for those who use a lake, as a script for its administrator (`mergus roles`); and whether the role
of a connection has what a server needs.

    owner     owns DuckLake's tables and our schema; only `mergus init` is run as it
    server    servers and listeners: the rows of both, and nothing of what they are
    writer    DuckDB sessions that write: DuckLake's rows, and tables for inlined rows. Nothing of ours
    reader    DuckDB sessions that read: DuckLake's rows

Sessions of the ducklake extension make tables for inlined rows, and insert into and drop those that others made; so do
we. Postgres lets nobody drop a table but its owner. So all of them, `ducklake_inlined_…`, belong to the writer's role,
whoever makes them: a server is a member of it and makes them as it (see `ducklake.inlined_tables`).

Who may create a table may create anything: a function `lower(varchar)` in DuckLake's schema, which statements of the
server would call with the server's rights, or a view in the place of a table for inlined rows, with anything in it.
Postgres has no finer right than that. So an event trigger refuses whatever is not a plain table for inlined rows. It is
what keeps a writer out of our schema, and it takes a superuser to make one.
"""

from dataclasses import astuple, dataclass
from typing import Any, Final, LiteralString

from psycopg import Connection, sql

from mergus.config import Settings
from mergus.errors import SetupError

Db = Connection[tuple[Any, ...]]

MAX_NAME_BYTES: Final = 63

# Each is the body of a function: names are put in as literals.
CHECK_LAKE: Final = """
BEGIN
    IF to_regclass(quote_ident({lake}) || '.ducklake_snapshot') IS NULL
       OR to_regclass(quote_ident({annex}) || '.migration') IS NULL THEN
        RAISE EXCEPTION 'database % has no DuckLake in schema % that `mergus init` has set up',
            current_database(), {lake};
    END IF;
END
"""
CREATE_ROLES: Final = """
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY[{owner}, {server}, {writer}, {reader}] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I LOGIN', role);
        END IF;
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), role);
    END LOOP;
    EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO %I', current_database(), {writer});
END
"""
HAND_OVER: Final = """
DECLARE
    found record;
BEGIN
    FOR found IN SELECT oid::regclass AS name, starts_with(relname, 'ducklake_inlined_') AS inlined FROM pg_class
                 WHERE relnamespace = quote_ident({lake})::regnamespace AND relkind = 'r'
                   AND starts_with(relname, 'ducklake_') LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO %I', found.name,
                       CASE WHEN found.inlined THEN {writer} ELSE {owner} END);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I', found.name, {writer});
        EXECUTE format('GRANT SELECT ON %s TO %I', found.name, {reader});
    END LOOP;
    FOR found IN SELECT oid::regclass AS name FROM pg_class
                 WHERE relnamespace = quote_ident({annex})::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO %I', found.name, {owner});
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I', found.name, {server});
    END LOOP;
    FOR found IN SELECT oid::regprocedure AS name FROM pg_proc
                 WHERE pronamespace = quote_ident({annex})::regnamespace AND prorettype = 'trigger'::regtype LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', found.name, {owner});
    END LOOP;
END
"""
# Of roles that are gone by now nobody is a member, and the rest of the database is none of its business. DuckDB's
# postgres extension updates by way of temporary tables, which no other session sees.
ONLY_INLINED: Final = """
DECLARE
    made record;
BEGIN
    IF pg_has_role(session_user, to_regrole(quote_ident({writer})), 'MEMBER') IS NOT TRUE
       OR pg_has_role(session_user, to_regrole(quote_ident({owner})), 'MEMBER') THEN
        RETURN;
    END IF;
    IF tg_tag NOT IN ('CREATE TABLE', 'DROP TABLE') THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s is not for writers of the lake', tg_tag);
    END IF;
    FOR made IN SELECT d.objid, d.object_type, d.object_identity FROM pg_event_trigger_ddl_commands() AS d LOOP
        IF NOT EXISTS (
            SELECT FROM pg_class c
            WHERE c.oid = made.objid AND made.object_type = 'table' AND c.relkind = 'r'
              AND (c.relnamespace = pg_my_temp_schema()
                   OR (c.relnamespace = to_regnamespace(quote_ident({lake})) AND c.relpersistence = 'p'
                       AND starts_with(c.relname, 'ducklake_inlined_')))
              AND c.reloftype = 0 AND NOT c.relispartition AND c.relchecks = 0
              AND NOT (c.relrowsecurity OR c.relhasrules OR c.relhastriggers OR c.relhassubclass)
              AND NOT EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent))
              AND NOT EXISTS (SELECT FROM pg_attrdef a WHERE a.adrelid = c.oid)
              AND NOT EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
                              WHERE a.attrelid = c.oid AND t.typnamespace <> 'pg_catalog'::regnamespace)
        ) THEN
            RAISE insufficient_privilege USING
                MESSAGE = format('%s is no plain table for inlined rows', made.object_identity);
        END IF;
    END LOOP;
END
"""

SCRIPT: Final = """\
-- The roles of a DuckLake in Postgres, as `mergus roles` prints them. Run it as a superuser in the lake's database,
-- after `mergus init`: all of it is done, or nothing. To run it again does no harm. Roles that it makes have no
-- password yet.
BEGIN;

DO {check_lake};

DO {create_roles};
GRANT {writer} TO {owner}, {server};

-- DuckLake's schema and ours are for nobody else.
REVOKE ALL ON SCHEMA {lake}, {annex} FROM PUBLIC;
ALTER SCHEMA {lake} OWNER TO {owner};
ALTER SCHEMA {annex} OWNER TO {owner};
GRANT USAGE, CREATE ON SCHEMA {lake} TO {writer};
GRANT USAGE ON SCHEMA {lake} TO {reader};
GRANT USAGE ON SCHEMA {annex} TO {server};

-- What is there, and what will be.
DO {hand_over};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {lake} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {writer};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner}, {writer} IN SCHEMA {lake} GRANT SELECT ON TABLES TO {reader};
ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {annex} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {server};

-- Writers make tables for inlined rows and nothing else: what they could make otherwise would run as the server.
CREATE OR REPLACE FUNCTION {annex}.only_inlined_tables() RETURNS event_trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS {only_inlined};
REVOKE ALL ON FUNCTION {annex}.only_inlined_tables() FROM PUBLIC;
DROP EVENT TRIGGER IF EXISTS {event_trigger};
CREATE EVENT TRIGGER {event_trigger} ON ddl_command_end EXECUTE FUNCTION {annex}.only_inlined_tables();

COMMIT;
"""


@dataclass(frozen=True, slots=True)
class Roles:
    owner: str
    server: str
    writer: str
    reader: str


def script(settings: Settings, roles: Roles) -> str:
    if len(set(astuple(roles))) < len(astuple(roles)):
        raise SetupError("owner, server, writer and reader have to be four roles")
    names = {
        **{"owner": roles.owner, "server": roles.server, "writer": roles.writer, "reader": roles.reader},
        **{"lake": settings.metadata_schema, "annex": settings.annex_schema},
    }
    if any("\0" in name or len(name.encode()) > MAX_NAME_BYTES or not name for name in names.values()):
        raise SetupError(f"names in Postgres have 1 to {MAX_NAME_BYTES} bytes")

    def body(text: LiteralString) -> sql.Composable:
        literals = {key: sql.Literal(name) for key, name in names.items()}
        return _dollar_quoted(sql.SQL(text).format(**literals).as_string(None))

    parts: dict[str, sql.Composable] = {key: sql.Identifier(name) for key, name in names.items()}
    parts |= {"check_lake": body(CHECK_LAKE), "create_roles": body(CREATE_ROLES)}
    parts |= {"hand_over": body(HAND_OVER), "only_inlined": body(ONLY_INLINED)}
    parts["event_trigger"] = sql.Identifier(event_trigger(settings))
    return sql.SQL(SCRIPT).format(**parts).as_string(None)


def event_trigger(settings: Settings) -> str:
    return f"{settings.annex_schema}_only_inlined_tables"


def _dollar_quoted(text: str) -> sql.Composable:
    """A name may have anything in it, the end of the quotation, too."""
    tag = "mergus"
    while f"${tag}$" in text:
        tag += "_"
    return sql.SQL(f"${tag}${text}${tag}$")  # pyright: ignore[reportArgumentType]


ROLE: Final = """
    SELECT current_user, rolsuper, pg_has_role(c.relowner, 'USAGE')
    FROM pg_roles, pg_class c WHERE rolname = current_user AND c.oid = 'ducklake_snapshot'::regclass
"""
LACKING: Final = """
    SELECT string_agg(privilege, ', ' ORDER BY n) || ' on ' || c.oid::regclass
    FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY AS p(privilege, n)
    WHERE c.relkind = 'r' AND NOT has_table_privilege(c.oid, privilege)
      AND (c.relnamespace = to_regnamespace(quote_ident(%(annex)s))
           OR (c.relnamespace = to_regnamespace(quote_ident(%(lake)s)) AND starts_with(c.relname, 'ducklake_')))
    GROUP BY c.oid
    UNION ALL
    SELECT privilege || ' on schema ' || quote_ident(schema)
    FROM (VALUES (%(lake)s, 'USAGE'), (%(lake)s, 'CREATE'), (%(annex)s, 'USAGE')) AS s(schema, privilege)
    WHERE NOT has_schema_privilege(schema, privilege)
    UNION ALL
    SELECT 'membership in ' || c.relowner::regrole || ', which owns the tables for inlined rows' FROM pg_class c
    WHERE c.oid = 'ducklake_inlined_data_tables'::regclass AND NOT pg_has_role(c.relowner, 'MEMBER')
    ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Role:
    """`lacks` is what a server needs and the role has not, in words."""

    name: str
    is_superuser: bool
    owns_the_lake: bool
    lacks: tuple[str, ...]


def current(conn: Db, settings: Settings) -> Role:
    row = conn.execute(ROLE).fetchone()
    assert row is not None  # noqa: S101  (there is a role, and a lake)
    names = {"lake": settings.metadata_schema, "annex": settings.annex_schema}
    return Role(*row, lacks=tuple(text for (text,) in conn.execute(LACKING, names).fetchall()))
