import zlib
from collections.abc import Iterator

import pytest

from tests.support import lakes, readers, servers
from tests.support.formats import LONG
from tests.support.readers import Served
from tests.support.sharing import Sharing


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Modules that have BY_TURNS are about something else than format versions: each of their tests runs in one, half
    of them in either. MERGUS_TEST_LONG=1 runs all in both."""
    left_out = [item for item in items if not LONG and _is_others_turn(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_others_turn(item: pytest.Item) -> bool:
    module = getattr(item, "module", None)
    if not getattr(module, "BY_TURNS", False):
        return False
    versions = [v for v in ("v2", "v3") if f"[{v}]" in item.name or f"[{v}-" in item.name]
    plain = item.name.replace("[v2", "[").replace("[v3", "[")
    return bool(versions) and versions[0] != ("v2", "v3")[zlib.crc32(plain.encode()) % 2]


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with lakes.lake() as lake, readers.served(lake, tmp_path_factory.mktemp("servers"), request.param) as made:
        yield made


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def sharing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharing]:
    """A lake with all of its defaults, and a server through which others write it."""
    options = {"format_version": request.param, "listener": servers.LISTENER}
    with (
        lakes.lake() as lake,
        servers.server(lake.settings, tmp_path_factory.mktemp("server"), **options) as server,
    ):
        yield Sharing(lake, server, request.param)
