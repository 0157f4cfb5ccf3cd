"""A DuckDB session on the lake, through the ducklake extension itself.

Extensions come from wheels and are loaded by path; nothing is ever downloaded. Used where only DuckDB can do
the thing: creating a catalog that is exactly DuckDB's, maintenance, and checks from the other side.
"""

from importlib.util import find_spec
from pathlib import Path

import duckdb

from mergus.config import Settings, hide_password
from mergus.errors import SetupError

# In loading order: an extension after those that it needs.
EXTENSIONS = ("httpfs", "postgres_scanner", "ducklake", "avro", "iceberg")
LAKE_EXTENSIONS = ("httpfs", "postgres_scanner", "ducklake")


def extension_file(name: str) -> Path:
    spec = find_spec(f"duckdb_extension_{name}")
    if spec is not None and spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            file = Path(folder) / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
            if file.is_file():
                return file
    wheel = f"duckdb-extension-{name.replace('_', '-')}=={duckdb.__version__}"
    raise SetupError(f"DuckDB's extension {name} is not installed; install {wheel}")


def platform() -> str:
    with duckdb.connect() as session:
        row = session.execute("PRAGMA platform").fetchone()
    assert row is not None  # noqa: S101  (a pragma with one row)
    return str(row[0])


def publish_extensions(directory: Path) -> Path:
    """Links every extension into one directory, by plain name (for LOAD 'path') and in the layout of DuckDB's
    `extension_directory` (for LOAD name and autoloading)."""
    layout = directory / f"v{duckdb.__version__}" / platform()
    layout.mkdir(parents=True, exist_ok=True)
    for name in EXTENSIONS:
        source = extension_file(name)
        for folder in (directory, layout):
            link = folder / source.name
            if not (link.is_symlink() and link.readlink() == source):
                link.unlink(missing_ok=True)
                link.symlink_to(source)
    return directory


# Extensions whose signatures this process has seen checked.
_CHECKED: set[Path] = set()


def with_extensions(*names: str) -> duckdb.DuckDBPyConnection:
    """A session that has loaded these and will load no other by itself.

    DuckDB hashes the whole of each to check its signature, which takes far longer than all the rest of opening a
    session: once in a process is enough.
    """
    files = [extension_file(name) for name in names]
    known = _CHECKED.issuperset(files)
    config = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    session = duckdb.connect(config={**config, "allow_unsigned_extensions": str(known).lower()})
    try:
        for file in files:
            session.execute(f"LOAD {literal(str(file))}")
        session.execute("SET allow_unsigned_extensions = false")
    except duckdb.Error:
        session.close()
        raise
    _CHECKED.update(files)
    return session


def attach(
    settings: Settings,
    data_path: str | None = None,
    alias: str = "lake",
    *,
    read_only: bool = False,
    at: int | None = None,
) -> duckdb.DuckDBPyConnection:
    """A session with the lake attached and in use, as it is or as it was at a snapshot. Makes the lake if there is none
    and `data_path` is given."""
    try:
        session = with_extensions(*LAKE_EXTENSIONS)
    except duckdb.Error as e:
        raise SetupError(f"DuckDB cannot load its extensions: {e}") from None
    try:
        if settings.s3_access_key_id is not None:
            session.execute(s3_secret(settings))
        options = [f"METADATA_SCHEMA {literal(settings.metadata_schema)}"]
        options += [f"DATA_PATH {literal(data_path)}"] if data_path else ["CREATE_IF_NOT_EXISTS false"]
        options += ["READ_ONLY"] if read_only else []
        options += [] if at is None else [f"SNAPSHOT_VERSION {at}"]
        source = literal(f"ducklake:postgres:{settings.dsn}")
        session.execute(f"ATTACH {source} AS {identifier(alias)} ({', '.join(options)})")
        session.execute(f"USE {identifier(alias)}")
    except duckdb.Error as e:
        session.close()
        raise SetupError(f"DuckDB cannot attach the lake: {hide_password(str(e))}") from None
    return session


def s3_secret(settings: Settings) -> str:
    """The statement that gives a session its S3 keys."""
    secret = settings.s3_secret_access_key
    token = settings.s3_session_token
    parts = [
        "TYPE s3",
        f"KEY_ID {literal(settings.s3_access_key_id or '')}",
        f"SECRET {literal(secret.get_secret_value() if secret else '')}",
        f"REGION {literal(settings.s3_region)}",
    ]
    if token is not None:
        parts.append(f"SESSION_TOKEN {literal(token.get_secret_value())}")
    if settings.s3_endpoint is not None:
        scheme, _, host = settings.s3_endpoint.partition("://")
        parts += [f"ENDPOINT {literal(host)}", f"USE_SSL {str(scheme == 'https').lower()}"]
    if settings.path_style:
        parts.append("URL_STYLE 'path'")
    return f"CREATE OR REPLACE SECRET mergus ({', '.join(parts)})"


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
