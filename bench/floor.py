"""The floor: the least that any server in this stack does. The same bytes, without routing, gate, log or query."""

import os
from pathlib import Path
from typing import Any

# of the answer that is compared with
BODY = (
    Path(os.environ["MERGUS_BENCH_BODY"]).read_bytes()
    if "MERGUS_BENCH_BODY" in os.environ
    else b'{"namespace":["bench"],"properties":{"owner":"bench","location":"s3://mergus/0123456789abcdef/data/bench/"}}'
)


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})
