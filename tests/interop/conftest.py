from collections.abc import Iterator

import pytest

from tests.support import lakes, readers
from tests.support.readers import Served


@pytest.fixture(scope="module", params=[2, 3], ids=["v2", "v3"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with lakes.lake() as lake, readers.served(lake, tmp_path_factory.mktemp("servers"), request.param) as made:
        yield made
