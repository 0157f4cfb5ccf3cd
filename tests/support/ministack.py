"""An S3 store with STS whose keys live for seconds, which no other of ours does: ministack, for tests of expiry.

It wants another botocore than we do, so it lives in an environment of its own, made once in the user's cache directory.
It keeps objects in memory and signs nothing off on AWS's behalf in other respects: whether policies are enforced is
asked of the suite's own store.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
from pydantic import SecretStr

from mergus import loopback
from mergus.process import Child
from tests.support.ports import free_port

VERSION = "1.5.33"
BUCKET = "mergus"

_EVERYTHING = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mergus-tests"


def install_package(name: str, version: str) -> Path:
    """The environment that has this package alone, in the user's cache directory; made first if it is not there.
    Processes that install at once do not meet."""
    place = cache() / f"{name}-{version}-py{sys.version_info[0]}.{sys.version_info[1]}"
    if not place.exists():
        draft = place.with_name(f"{place.name}.{uuid4().hex}")
        uv = str(Path(sys.executable).with_name("uv"))
        # scripts name the interpreter by its whole path: the environment must not move once it is made
        subprocess.run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(draft)], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", str(draft / "bin/python"), f"{name}=={version}"]
        # behind a proxy that signs for itself only the system's certificates are right
        if subprocess.run(install, check=False).returncode:
            subprocess.run([*install, "--system-certs"], check=True)
        try:
            draft.rename(place)
        except OSError:
            shutil.rmtree(draft)
    return place


def installed() -> Path:
    """The program; installed first if it is not there."""
    return install_package("ministack", VERSION) / "bin/ministack"


@contextmanager
def running(folder: Path, seconds: int, services: str = "s3,sts,iam", auth: str = "true") -> Iterator[dict[str, Any]]:
    """Settings of a lake on such a store, whose keys are good for so many seconds. Without `auth` any keys are good."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    root = {"AWS_ACCESS_KEY_ID": "root", "AWS_SECRET_ACCESS_KEY": uuid4().hex}
    places = {"S3_DATA_DIR": str(folder / "s3"), "TMPDIR": str(folder), "HOME": str(folder)}
    how = {"AUTH": auth, "SERVICES": services, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
    env = {"PATH": os.environ["PATH"], "LOG_LEVEL": "WARNING", "MINISTACK_HOST": "127.0.0.1", **places, **how, **root}
    store = Child("ministack", [str(installed())], folder / "ministack.log", env=env)
    try:
        store.wait_until(lambda: _answers(endpoint), 60)
        yield _set_up(endpoint, root, seconds)
    finally:
        store.stop()


def _answers(endpoint: str) -> bool:
    try:
        loopback.open_url(f"{endpoint}/_ministack/health", 2).close()
    except OSError:
        return False
    return True


def _set_up(endpoint: str, root: dict[str, str], seconds: int) -> dict[str, Any]:
    """A user for the server and a role for its clients; keys of the root account itself cannot take one on."""

    def client(service: str, key: str, secret: str) -> Any:
        names = {"aws_access_key_id": key, "aws_secret_access_key": secret}
        return boto3.client(service, endpoint_url=endpoint, region_name="us-east-1", **names)

    iam = client("iam", root["AWS_ACCESS_KEY_ID"], root["AWS_SECRET_ACCESS_KEY"])
    user = iam.create_user(UserName="server")["User"]
    iam.put_user_policy(UserName="server", PolicyName="all", PolicyDocument=json.dumps(_EVERYTHING))
    keys = iam.create_access_key(UserName="server")["AccessKey"]
    trusted = {"Effect": "Allow", "Principal": {"AWS": user["Arn"]}, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [trusted]})
    role = iam.create_role(RoleName="vended", AssumeRolePolicyDocument=trust)["Role"]
    iam.put_role_policy(RoleName="vended", PolicyName="all", PolicyDocument=json.dumps(_EVERYTHING))
    client("s3", keys["AccessKeyId"], keys["SecretAccessKey"]).create_bucket(Bucket=BUCKET)
    return {
        "s3_endpoint": endpoint,
        "s3_region": "us-east-1",
        "s3_path_style": True,
        "s3_access_key_id": keys["AccessKeyId"],
        "s3_secret_access_key": SecretStr(keys["SecretAccessKey"]),
        "sts_endpoint": endpoint,
        "sts_role_arn": role["Arn"],
        "vended_seconds": seconds,
    }
