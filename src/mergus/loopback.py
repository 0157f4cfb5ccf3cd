"""Speaking HTTP to a server on this machine, past whatever proxy the environment names for the rest of the world."""

import ipaddress
import os
import urllib.request
from http.client import HTTPResponse
from typing import cast
from urllib.parse import urlsplit

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def open_url(request: str | urllib.request.Request, seconds: float) -> HTTPResponse:
    """As urlopen, which asks a proxy also for loopback addresses if it is told of one."""
    url = request if isinstance(request, str) else request.full_url
    opener = _direct if is_loopback(urlsplit(url).hostname or "") else urllib.request.build_opener()
    return cast(HTTPResponse, opener.open(request, timeout=seconds))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bypass_proxies() -> None:
    """The same for every other library in this process, and for processes that it starts."""
    for name in ("NO_PROXY", "no_proxy"):
        known = os.environ.get(name)
        os.environ[name] = ",".join(filter(None, (known, "127.0.0.1,localhost,::1")))
