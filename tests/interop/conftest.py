from collections.abc import Iterator

import pytest

from tests.support import lakes, readers, servers
from tests.support.readers import Served
from tests.support.sharing import Sharing


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
