"""A Hive metastore: the one that is in pyspark's jars, on a database of its own in a directory."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from mergus.process import Child
from tests.support.ports import free_port

STARTUP_SECONDS = 120

_SITE = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName={folder}/database;create=true",
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    "hive.metastore.warehouse.dir": "file://{folder}/warehouse",
    # it would want a library that pyspark does not bring
    "hive.async.log.enabled": "false",
}


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Its address."""
    properties = "".join(
        f"<property><name>{name}</name><value>{value.format(folder=folder)}</value></property>"
        for name, value in _SITE.items()
    )
    (folder / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
    port = free_port()
    jars = Path(pyspark.__file__).parent / "jars"
    memory = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dderby.system.home={folder}"]
    place = f"{folder}:{jars}/*"
    command = ["java", *memory, "-cp", place, "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    server = Child("hive metastore", command, folder / "metastore.log")
    try:
        server.wait_until(lambda: _answers(port), STARTUP_SECONDS)
        yield f"thrift://127.0.0.1:{port}"
    finally:
        server.stop()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
