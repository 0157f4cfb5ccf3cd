"""What every forked command finds in its memory: all modules, and what the first app of a process makes once."""

import gc
from importlib import import_module

from mergus.app import create_app
from mergus.config import Settings

for name in ("mergus.cli", "mergus.listen", "mergus.serve"):
    import_module(name)
# FastAPI imports a good part of pydantic when it sees its first route.
create_app(Settings.model_validate({"postgres_dsn": "postgresql:///", "data_path": "s3://none/none/"}))
# A server collects garbage when it starts. It need not look at what was there before it, and so copy it.
gc.collect()
gc.freeze()
