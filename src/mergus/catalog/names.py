"""One name, one thing: tables and views of a namespace share their names, whoever made them."""

from mergus.annex import views as annex
from mergus.ducklake import tables
from mergus.ducklake.connect import Conn
from mergus.errors import AlreadyExists, BadRequest
from mergus.iceberg.namespace import Namespace


def check_name(name: str, what: str = "table") -> None:
    if not name or "\0" in name:
        raise BadRequest(f"A {what} needs a name, without a NUL character in it")


async def find_clash(conn: Conn, schema_id: int, name: str) -> str | None:
    """What has the name already, or one that DuckDB takes for it: "table x" or "view x". Ask under the lock."""
    if clash := await tables.find_clash(conn, schema_id, name):
        return clash
    found = await annex.find_clash(conn, schema_id, name)
    return None if found is None else f"view {found}"


def taken(namespace: Namespace, name: str, clash: str, wanted: str = "table") -> AlreadyExists:
    kind, _, found = clash.partition(" ")
    if found != name:
        return AlreadyExists(
            f"{kind.capitalize()} already exists: {namespace}.{found}, and names are the same to DuckDB whatever their "
            f"case: {name}"
        )
    same = "" if kind == wanted else " with same name"
    return AlreadyExists(f"{kind.capitalize()}{same} already exists: {namespace}.{name}")


def target_taken(source: tuple[Namespace, str], target: tuple[Namespace, str], clash: str) -> AlreadyExists:
    kind, _, found = clash.partition(" ")
    moved = f"Cannot rename {source[0]}.{source[1]} to {target[0]}.{target[1]}. {kind.capitalize()} already exists"
    if found == target[1]:
        return AlreadyExists(moved)
    return AlreadyExists(f"{moved}: {target[0]}.{found}, and names are the same to DuckDB whatever their case")
