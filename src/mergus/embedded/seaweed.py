"""The embedded S3 store: SeaweedFS from a wheel, in one process, on the loopback address."""

import json
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path

from mergus.embedded.state import StateDir
from mergus.errors import SetupError
from mergus.process import Child

REGION = "us-east-1"


class Seaweed:
    def __init__(self, state: StateDir, port: int | None) -> None:
        self.access_key = "mergus-" + state.secret("s3_access_key")[:12]
        self.secret_key = state.secret("s3_secret_key")
        self.port = state.port("s3", port)
        folder = state.folder("s3")
        config = folder / "iam.json"
        config.touch(mode=0o600)
        config.write_text(json.dumps(self._identities()))
        # Every port is named, so that several can run on one machine. -disableHttp: the filer's own port would
        # serve objects without asking for keys. Sockets are relative to the working directory because the path
        # of a Unix socket may have 107 characters at most.
        ports = [
            f"-{part}{kind}={state.port(f's3 {part}{kind}')}"
            for part in ("master.port", "volume.port", "filer.port", "admin.port")
            for kind in ("", ".grpc")
        ]
        command = [
            *(_weed(), "-logtostderr=true", "-v=0", "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *("-master.telemetry=false", "-disableHttp", "-admin.ui=false", "-webdav=false"),
            *("-volume.max=2000", "-master.volumeSizeLimitMB=64"),
            *(f"-s3.port={self.port}", f"-s3.port.grpc={state.port('s3 grpc')}", *ports),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock"),
            *(f"-s3.config={config}", f"-s3.iam.config={config}"),
        ]
        self.child = Child("SeaweedFS", command, state.folder("logs") / "seaweedfs.log", cwd=folder)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        self.child.wait_until(self._answers, 60)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=2).close()  # noqa: S310
        except urllib.error.HTTPError as e:
            return e.code == 403  # it asks for keys: it is up
        except OSError:
            return False
        return True

    def _identities(self) -> dict[str, object]:
        keys = {"accessKey": self.access_key, "secretKey": self.secret_key}
        return {"identities": [{"name": "mergus", "credentials": [keys], "actions": ["Admin"]}]}


def _weed() -> str:
    beside_python = Path(sys.executable).with_name("weed")
    found = str(beside_python) if beside_python.exists() else shutil.which("weed")
    if found is None:
        raise SetupError("the embedded S3 store is not installed: pip install 'mergus[embedded]'")
    return found
