"""The one settings object.

Read from `MERGUS_*` variables, then from `connection.env` in the state directory (written while an
embedded stack runs), then from the defaults here. The reference page in OPERATIONS.md is generated from
these fields, so a description is written for an operator. Secrets are `SecretStr` and reach no log.
"""

import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from mergus.errors import SetupError

CONNECTION_FILE = "connection.env"
DEFAULT_NAME = "lake"


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def default_state_dir() -> Path:
    return _absolute(Path(os.environ.get("MERGUS_STATE_DIR") or ".mergus"))


def _with_slash(path: str | None) -> str | None:
    return path.rstrip("/") + "/" if path else None


def _warehouse(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text):
        return text
    if re.fullmatch(r"s3://[^/]+|(s3://|file:///)[^/].*", location := text.rstrip("/")):
        return location
    raise ValueError("a name of letters, digits, - and _, or an s3:// or file:// location, is needed")


def _catalog(name: str | None) -> str | None:
    if name is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", name):
        raise ValueError("a name of letters, digits, - and _ is needed")
    return name


def _short(schema: str) -> str:
    """Names of ours that begin with it must fit into Postgres's 63 bytes."""
    if not 0 < len(schema.encode()) <= 40:
        raise ValueError("a name of 1 to 40 bytes is needed")
    return schema


def _endpoint(url: str | None) -> str | None:
    if url is not None and not re.fullmatch(r"https?://[^/\s@]+/*", url):
        raise ValueError("a URL as http://host:port or https://host is needed")
    return url.rstrip("/") if url else None


_VOUCHERS = ("oauth2", "oidc", "none")
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


def _auth(text: str | None) -> str | None:
    words = (text or "").split()
    if not words:
        return None
    if any(word not in _VOUCHERS for word in words) or len(set(words)) < len(words) or ("none" in words and words[1:]):
        raise ValueError("oauth2, oidc, both with a space between, or none is needed")
    return " ".join(sorted(words))


def _issuer(url: str | None) -> str | None:
    if url is None:
        return None
    if not re.fullmatch(r"https://[^\s?#@]+|http://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?(/[^\s?#]*)?", url):
        raise ValueError("an https:// URL is needed (http:// on a loopback address only)")
    return url


def _algorithms(text: str) -> str:
    """Neither `none` nor a shared secret: an issuer's public key must never be taken for one."""
    words = text.split()
    if not words or any(word not in _ALGORITHMS for word in words):
        raise ValueError(f"some of {', '.join(_ALGORITHMS)} are needed, with spaces between them")
    return " ".join(words)


def _memory(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*(\.\d+)? ?([KMGT]i?B)", text, re.IGNORECASE):
        raise ValueError("a size like 1GB or 512MiB is needed")
    return text


# The variables that AWS tools read, for what is not set as MERGUS_*.
AWS_VARIABLES = {
    "s3_endpoint": ("AWS_ENDPOINT_URL_S3",),
    "s3_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "s3_access_key_id": ("AWS_ACCESS_KEY_ID",),
    "s3_secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "s3_session_token": ("AWS_SESSION_TOKEN",),
}
_KEYS = ("s3_access_key_id", "s3_secret_access_key", "s3_session_token")


class _Variables(PydanticBaseSettingsSource):
    """Settings from variables of ours or of AWS tools. Keys are taken from one place together: somebody's session
    token does not go with another's key."""

    def __init__(
        self, settings_cls: type[BaseSettings], variables: Mapping[str, str], names: Callable[[str], tuple[str, ...]]
    ) -> None:
        super().__init__(settings_cls)
        self._variables = variables
        self._names = names

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        found = next(filter(None, map(self._variables.get, self._names(field_name))), None)
        return found, field_name, False

    def __call__(self) -> dict[str, Any]:
        skipped = _KEYS if "s3_access_key_id" in self.current_state else ()
        fields = self.settings_cls.model_fields.items()
        values = {name: self.get_field_value(field, name)[0] for name, field in fields if name not in skipped}
        return {name: value for name, value in values.items() if value is not None}


def variable(field: str) -> str:
    return f"MERGUS_{field.upper()}"


def read_connection(file: Path) -> dict[str, str]:
    """What a shell that sources the file would see; nothing where there is none, or not one of ours."""
    try:
        words = [shlex.split(line) for line in file.read_text().splitlines()]
        return dict(word[0].split("=", 1) for word in words if word)
    except (OSError, ValueError):
        return {}


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="MERGUS_", extra="ignore", frozen=True, env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="Address to serve on.")
    port: int = Field(8181, ge=0, le=65535, description="Port to serve on; 0 lets the system choose.")
    workers: int = Field(1, ge=1, le=256, description="Server processes.")
    state_dir: Annotated[Path, AfterValidator(_absolute)] = Field(
        default_factory=default_state_dir,
        description="Where `mergus dev` keeps its data, keys and `connection.env`. Default: `.mergus` in "
        "the current directory.",
    )

    warehouse: Annotated[str, AfterValidator(_warehouse)] = Field(
        DEFAULT_NAME,
        description="Name of the warehouse: what clients give as `warehouse`, and the prefix of request paths. Or a "
        "location, `s3://bucket/path` or `file:///dir`: a new lake then keeps its data in `data/` below it, and the "
        "name is `lake`.",
    )
    data_path: Annotated[str | None, AfterValidator(_with_slash)] = Field(
        None,
        description="DuckLake's `DATA_PATH`. Default: `data/` in the warehouse's location, or a bucket on the "
        "embedded store of `mergus dev`. An existing lake has its own, and anything else is refused.",
    )

    iceberg_path: str | None = Field(
        None,
        description="Where Iceberg metadata, delete files and inlined rows go, in a directory for each table. Must lie "
        "outside of the data path, where DuckLake deletes Parquet files that it does not know. Default: beside the "
        "data path, with `-iceberg` after its name.",
    )
    allowed_locations: str = Field(
        "",
        description="Places beside the lake's own where Iceberg clients may have files of tables and views: `s3://` or "
        "`file://` locations with spaces between them. A table's `location`, and the files that a commit names, must "
        "lie in one of them, or where the lake keeps the table itself.",
    )
    purge_requested: Literal["purge", "drop"] = Field(
        "purge",
        description="What a drop with `purgeRequested` does. `purge`: the table leaves all snapshots at once, and its "
        "files are deleted. `drop`: it is dropped as without it, can be brought back, and its files go when its "
        "snapshots expire. Trino asks for a purge with every `DROP TABLE`.",
    )
    trino_catalog: Annotated[str | None, AfterValidator(_catalog)] = Field(
        None,
        description="Name of this lake's catalog in Trino. If it is set, views that DuckDB makes have a text for "
        "Trino, which reads their tables from the catalog of that name; see README.md. Unset: Trino does not read "
        "them.",
    )
    staged_seconds: int = Field(
        86_400,
        ge=1,
        description="Seconds for which a client may commit a table that it was promised (stage-create).",
    )
    idempotency_seconds: int = Field(
        86_400,
        ge=60,
        description="Seconds for which a request with an `Idempotency-Key` may be sent again and is answered as the "
        "first time; told to clients. Each such request is a row in Postgres for as long.",
    )
    reports_seconds: int = Field(
        3 * 86_400,
        ge=0,
        description="Seconds for which reports of clients on their scans and commits are kept in Postgres, for "
        "`/v1/{prefix}/admin/namespaces/{namespace}/tables/{table}/reports`. 0: they are only measured.",
    )
    reports_per_table: int = Field(
        1000, ge=1, description="Reports that are kept of a table: the newest. Each is 128 KiB at most."
    )
    format_version: int = Field(
        2,
        ge=2,
        le=3,
        description="Iceberg format version of tables that do not say theirs (`mergus.format-version`) and do not need "
        "version 3.",
    )
    history_patience: float = Field(
        2,
        ge=0,
        description="Seconds for which the first load of a table waits for its older snapshots; the rest follows.",
    )
    listener: Literal["embedded", "off"] = Field(
        "embedded",
        description="`embedded`: the server's processes listen for commits, and one of all that serve the lake, or run "
        "`mergus listen`, puts each on storage before anyone asks. `off`: this server does so when it is asked.",
    )
    listener_tables: int = Field(
        4, ge=1, le=64, description="Tables that the leading listener puts on storage at once; each needs a connection."
    )
    listener_port: int | None = Field(
        None, ge=0, le=65535, description="`mergus listen`: port on which its metrics are served. Default: none."
    )
    maintenance: Literal["embedded", "off"] = Field(
        "embedded",
        description="`embedded`: the server's processes work on jobs (compaction, expiry, sweeping), one at a time "
        "each. `off`: they only take them in; `mergus maintain work` does them elsewhere.",
    )
    maintenance_every: int = Field(
        0,
        ge=0,
        description="Seconds after which the whole lake is compacted and swept again by itself, and snapshots expire "
        "if `MERGUS_EXPIRE_SECONDS` says so; orphans are looked for once a day. 0: only when somebody asks.",
    )
    expire_seconds: int = Field(
        0, ge=0, description="Age at which that lets snapshots expire, but for those that are protected. 0: none do."
    )
    grace_seconds: int = Field(
        86_400,
        ge=0,
        description="Seconds for which objects are kept that nothing needs any more: readers that are under way have "
        "them for as long.",
    )
    maintenance_seconds: int = Field(
        900, ge=1, description="Seconds after which a job lets others go first, and most that one table may take."
    )
    maintenance_memory: Annotated[str, AfterValidator(_memory)] = Field(
        "1GB", description="Memory that DuckDB may use for maintenance, in a process; more goes to disk."
    )
    maintenance_threads: int = Field(2, ge=1, le=256, description="Threads that it may use.")
    compact_handover_bytes: int = Field(
        0,
        ge=0,
        description="Bytes of a table that compaction would rewrite from which on it leaves them to "
        "`mergus pipeline compact`, on Spark. 0: it does all tables itself.",
    )
    jobs_seconds: int = Field(30 * 86_400, ge=60, description="Seconds for which jobs are known after they have ended.")
    cached_tables: int = Field(10_000, ge=1, description="Tables whose answers a server process keeps ready.")

    postgres_dsn: SecretStr | None = Field(
        None,
        description="Postgres that holds the DuckLake catalog, as URI or `key=value` string. `mergus dev` "
        "starts its own when this is unset.",
    )
    metadata_schema: Annotated[str, AfterValidator(_short)] = Field(
        "public", description="Postgres schema of the `ducklake_*` tables."
    )
    pool_min: int = Field(1, ge=0, description="Postgres connections that a server process keeps open.")
    pool_max: int = Field(10, ge=1, description="Postgres connections that a server process may open.")
    pool_timeout: float = Field(
        5, gt=0, description="Seconds a request waits for a connection before it is answered 503."
    )
    lock_timeout: float = Field(
        10, gt=0, description="Seconds a commit waits for other writers before it is answered 503."
    )
    statement_timeout: float = Field(30, gt=0, description="Seconds one SQL statement may take.")

    s3_endpoint: Annotated[str | None, AfterValidator(_endpoint)] = Field(
        None,
        description="S3 endpoint URL; unset means AWS (or, for `mergus dev`, the embedded store).",
    )
    s3_region: str = Field(
        "us-east-1",
        description="S3 region.",
    )
    s3_access_key_id: str | None = Field(
        None,
        description="S3 access key; unset means the default AWS credential chain.",
    )
    s3_secret_access_key: SecretStr | None = Field(
        None,
        description="S3 secret key.",
    )
    s3_session_token: SecretStr | None = Field(
        None,
        description="Session token that goes with temporary S3 keys.",
    )
    s3_path_style: bool | None = Field(
        None,
        description="Address buckets as `endpoint/bucket`. Default: yes when an endpoint is set.",
    )

    auth: Annotated[str | None, AfterValidator(_auth)] = Field(
        None,
        description="Who vouches for clients: `oauth2` (clients of this lake, see `mergus clients`), `oidc` (another "
        "issuer), or both with a space between. `none` lets everybody do everything; unset means that, too, and is "
        "refused on any but a loopback address.",
    )
    token_keys: SecretStr | None = Field(
        None,
        description="What signs the tokens of `oauth2`: `name:secret`, with spaces between several. The first signs, "
        "all are accepted, so a new one is put in front and the old one taken away when its tokens have expired. "
        "Secrets have 32 bytes or more. Default: a secret that `mergus init` makes and keeps in Postgres.",
    )
    token_key_files: str = Field(
        "",
        description="The same, as files of private keys (PEM; RSA, or EC on P-256) with spaces between them. They come "
        "before `MERGUS_TOKEN_KEYS`.",
    )
    token_seconds: int = Field(3600, ge=60, description="Seconds for which a token of `oauth2` is good.")
    token_rate: int = Field(
        60,
        ge=1,
        description="Wrong secrets for one client's name that a server process takes from one address in a minute; for "
        "all names together it takes ten times as many. Right secrets do not count.",
    )
    clients_file: Path | None = Field(
        None,
        description="File with clients of `oauth2` and their grants, beside those in Postgres; see OPERATIONS.md.",
    )
    oidc_issuer: Annotated[str | None, AfterValidator(_issuer)] = Field(
        None, description="URL of the issuer whose tokens `oidc` accepts; its keys are found by discovery."
    )
    oidc_audience: str | None = Field(None, description="Audience that such tokens must be for.")
    oidc_algorithms: Annotated[str, AfterValidator(_algorithms)] = Field(
        "RS256 ES256", description="Algorithms by which they may be signed, with spaces between them."
    )
    oidc_principal_claim: str = Field(
        "sub", min_length=1, description="Claim that names who asks. Dots lead into objects."
    )
    oidc_roles_claim: str = Field(
        "roles", min_length=1, description="Claim with a list of roles. Dots lead into objects: `realm_access.roles`."
    )
    oidc_scopes: Literal["limit", "grant"] = Field(
        "limit",
        description="What scopes like `ns:sales:r` in such a token do: limit what the grants of its principal and "
        "roles allow, or grant that themselves.",
    )
    metrics_public: bool = Field(
        False, description="Whether `/metrics` is answered without a token, when there are any."
    )
    audit_seconds: int = Field(
        30 * 86_400,
        ge=0,
        description="Seconds for which the audit log is kept in Postgres: who changed what, was refused, or got keys "
        "or signatures for objects. 0: none is kept.",
    )

    sts_role_arn: str | None = Field(
        None,
        description="Role that the server takes on (STS AssumeRole) for keys that it hands to clients, each narrowed "
        "down to one table. Unset: no keys are handed out.",
    )
    sts_endpoint: Annotated[str | None, AfterValidator(_endpoint)] = Field(
        None, description="STS endpoint URL. Default: the S3 endpoint, or AWS where there is none."
    )
    vended_seconds: int = Field(3600, ge=1, description="Seconds for which such keys are good. AWS takes 900 or more.")
    remote_signing: bool = Field(
        False,
        description="Whether the server signs single requests to the S3 store for clients that ask for it: for stores "
        "without STS.",
    )

    page_size: int = Field(
        1000, ge=1, le=10_000, description="Most entries in one page of a listing; clients may ask for fewer."
    )
    max_body_bytes: int = Field(
        16 * 1024 * 1024, ge=1024, description="Largest request body; a larger one is answered 413."
    )
    shutdown_grace: int = Field(
        20, ge=0, description="Seconds that requests in flight get to finish when the server is stopped."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Log level.")
    log_format: Literal["json", "text"] = Field("json", description="Log format: JSON lines, or plain text.")
    tracing: Literal["off", "otlp"] = Field(
        "off",
        description="`otlp`: traces of requests, commits and the listener's work are sent to an OpenTelemetry "
        "collector, as the standard `OTEL_*` variables say; needs `mergus[otel]`.",
    )

    postgres_port: int | None = Field(
        None, ge=1, le=65535, description="`mergus dev`: port of the embedded Postgres. Default: a free one, then kept."
    )
    s3_port: int | None = Field(
        None, ge=1, le=65535, description="`mergus dev`: port of the embedded S3 store. Default: a free one, then kept."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        connection = read_connection(default_state_dir() / CONNECTION_FILE)
        return (
            init_settings,
            env_settings,
            _Variables(settings_cls, connection, lambda name: (variable(name),)),
            _Variables(settings_cls, connection, lambda name: AWS_VARIABLES.get(name, ())),
            _Variables(settings_cls, os.environ, lambda name: AWS_VARIABLES.get(name, ())),
        )

    @property
    def dsn(self) -> str:
        if self.postgres_dsn is None:
            raise SetupError(
                "no Postgres is named: set MERGUS_POSTGRES_DSN, or start an embedded one with `mergus dev`"
            )
        return self.postgres_dsn.get_secret_value()

    @property
    def annex_schema(self) -> str:
        """Postgres schema of our own tables; one per DuckLake, so that lakes may share a database."""
        return "mergus" if self.metadata_schema == "public" else f"mergus_{self.metadata_schema}"

    @property
    def prefix(self) -> str:
        """The warehouse's name, as it stands in request paths."""
        return DEFAULT_NAME if "://" in self.warehouse else self.warehouse

    @property
    def new_data_path(self) -> str | None:
        """Where a lake that does not exist yet would keep its data."""
        return self.data_path or (f"{self.warehouse}/data/" if "://" in self.warehouse else None)

    @property
    def path_style(self) -> bool:
        return self.s3_path_style if self.s3_path_style is not None else self.s3_endpoint is not None

    def shown(self) -> dict[str, Any]:
        """The effective values, fit to be printed."""
        values = self.model_dump(mode="json")
        if self.postgres_dsn is not None:
            values["postgres_dsn"] = _shown_dsn(self.postgres_dsn.get_secret_value())
        return values


def _shown_dsn(dsn: str) -> str:
    """Rebuilt from its parts, so that no way of writing a password is overlooked."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        parts = conninfo_to_dict(dsn)
    except ProgrammingError:
        return "***"
    return make_conninfo("", **{**parts, "password": "***"} if "password" in parts else parts)


def hide_password(text: str) -> str:
    """Blanks the password in a Postgres URI or `key=value` string, wherever in a text it stands."""
    text = re.sub(r"(?<=://)([^:/?#@\s]*):\S*@", r"\1:***@", text)
    return re.sub(r"(?i)(password\s*=\s*)('(?:\\.|[^'\\])*'|(?:\\.|[^\s\\])+)", r"\1***", text)


def load_settings(**overrides: object) -> Settings:
    """Settings from the environment; a bad value becomes a message that names the variable."""
    try:
        return Settings(**{k: v for k, v in overrides.items() if v is not None})  # pyright: ignore[reportArgumentType]
    except ValidationError as e:
        lines = [f"  {variable(str(err['loc'][-1]))}: {err['msg']}" for err in e.errors(include_input=False)]
        raise SetupError("settings that cannot be used:\n" + "\n".join(lines)) from None


def connection_uri() -> str | None:
    """The server that a client here should speak to: MERGUS_URI, or the one that `mergus dev` runs."""
    return os.environ.get("MERGUS_URI") or read_connection(default_state_dir() / CONNECTION_FILE).get("MERGUS_URI")


def reference() -> str:
    """The configuration reference as a Markdown table (OPERATIONS.md holds a copy that a test compares)."""
    rows = ["| Variable | Default | Meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        others = [f"`{other}`" for other in AWS_VARIABLES.get(name, ())]
        default = "" if field.default_factory or field.default is None else f"`{field.default}`"
        meaning = (field.description or "") + (f" Falls back to {', '.join(others)}." if others else "")
        rows.append(f"| `{variable(name)}` | {default} | {meaning} |")
    return "\n".join(rows) + "\n"
