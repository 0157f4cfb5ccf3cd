"""HTTP as uvicorn speaks it, with bounds for what comes before a body.

httptools, the parser, has none: it would keep a header of a gigabyte until it ends. So a connection is closed, with an
answer in the protocol's shape, when the line and the headers of a request are too large or too many, or when the parser
takes in more than that without making anything of it (in a trailer, too).
"""

from typing import Final

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mergus.errors import ApiError, BadRequest, HeadersTooLarge
from mergus.rest.answer_headers import security
from mergus.rest.errors import error_body

# Room for a token of 16 KiB and all else that clients and proxies send.
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 100

_REASONS: Final = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


class BoundedProtocol(HttpToolsProtocol):
    # of the request that is coming in
    _head_bytes = 0
    # taken in by the parser since it last told something
    _untold_bytes = 0
    _is_too_large = False

    def data_received(self, data: bytes) -> None:
        if self._untold_bytes > MAX_HEAD_BYTES:
            self._is_too_large = True
            self.send_400_response("")
            return
        self._untold_bytes += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._head_bytes = self._untold_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if len(self.headers) >= MAX_HEADERS:
            self._refuse()
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._untold_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._untold_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers to whatever is not HTTP, in our words; `msg` is always the same."""
        error: ApiError = BadRequest("The request is not valid HTTP")
        if self._is_too_large:
            error = HeadersTooLarge(
                f"The request line and headers are larger than {MAX_HEAD_BYTES} bytes, or more than {MAX_HEADERS}"
            )
        content = orjson.dumps(error_body(error))
        headers = (
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
            *security(self.scheme or "http"),
        )
        lines = [b"HTTP/1.1 %d %s" % (error.status, _REASONS[error.status]), *(b"%s: %s" % h for h in headers)]
        self.transport.write(b"\r\n".join([*lines, b"", content]))
        self.transport.close()

    def _count(self, size: int) -> None:
        self._untold_bytes = 0
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse()

    def _refuse(self) -> None:
        """The parser stops at an exception, and uvicorn answers that with `send_400_response`."""
        self._is_too_large = True
        raise ValueError("the head of the request is too large")
