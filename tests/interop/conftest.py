from collections.abc import Iterator

import pytest

from tests.support import lakes, readers, servers
from tests.support.formats import LONG, choose_others, is_others_turn
from tests.support.readers import Served
from tests.support.sharing import Sharing


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Modules that have BY_TURNS are about something else than format versions: each of their tests runs in one, half
    of them in either. A heavy run has some of the others, which its seed chooses. MERGUS_TEST_LONG=1 runs all."""
    if LONG:
        return
    others = {item.nodeid: item for item in items if getattr(getattr(item, "module", None), "BY_TURNS", False)}
    others = {name: item for name, item in others.items() if is_others_turn(item.name)}
    chosen = choose_others(list(others), _seed(config)) if _is_heavy(config) else set[str]()
    for name in chosen:
        others.pop(name).add_marker("heavy")
    if others:
        config.hook.pytest_deselected(items=list(others.values()))
        items[:] = [item for item in items if item.nodeid not in others]


def _is_heavy(config: pytest.Config) -> bool:
    return config.option.markexpr == "heavy"


def _seed(config: pytest.Config) -> str:
    """The seed of the random order, which a run prints."""
    return str(config.option.random_order_seed).removeprefix("default_value:")


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, full = tmp_path_factory.mktemp("servers"), LONG or _is_heavy(request.config)
    with lakes.lake() as lake, readers.served(lake, folder, request.param, full=full) as made:
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
