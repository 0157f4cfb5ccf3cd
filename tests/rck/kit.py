"""Apache Iceberg's REST Compatibility Kit: the judge of a catalog that its authors publish, run as they publish it.

The kit is JUnit classes in jars. Apache Ivy, which comes with pyspark, fetches what ivy.xml names; JUnit's own command
line runs the classes against a server and writes a report. So it takes Java, but neither Maven nor Java code of ours.
"""

import fcntl
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple
from xml.etree import ElementTree

import pyspark

IVY_FILE = Path(__file__).with_name("ivy.xml")
SPARK_JARS = Path(pyspark.__file__).parent / "jars"
CLASSES = {
    "catalog": "org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests",
    "view": "org.apache.iceberg.rest.RESTCompatibilityKitViewCatalogTests",
}
# System properties: the kit takes them all for properties of its catalog client, JUnit reads its own among them.
PROPERTIES = {
    "rck.local": "false",
    "rck.requires-namespace-create": "true",  # else it makes tables in namespaces that do not exist
    "rest.client.connection-timeout-ms": "10000",
    "rest.client.socket-timeout-ms": "60000",
    "junit.jupiter.execution.timeout.testable.method.default": "180 s",
}
RESOLVE_SECONDS = 900
RUN_SECONDS = 1200


class Result(NamedTuple):
    name: str  # catalog.testCreateNamespace; with arguments, catalog.createTableTransaction[2]
    verdict: Literal["pass", "fail", "skip"]
    detail: str  # why it failed or was skipped


def run(uri: str, warehouse: str, *patterns: str, storage: Mapping[str, str] | None = None) -> list[Result]:
    """Run the tests whose names match one of the patterns, on a catalog that nobody else uses. `storage` are properties
    of the client, by which it reaches what the server does not tell it: its keys.

    A pattern is `catalog` or `view`, alone for all of its tests, or followed by a dot and a regular expression that
    must match a test's whole name: `catalog.test.*Namespace`.
    """
    chosen = [pattern.partition(".") for pattern in patterns]
    classes = sorted({CLASSES[kit] for kit, _, _ in chosen})
    methods = [rf"{re.escape(CLASSES[kit])}#(?:{method or '.*'})" for kit, _, method in chosen]
    with TemporaryDirectory(prefix="mergus-rck-") as scratch:
        properties = {**PROPERTIES, **(storage or {}), "uri": uri, "warehouse": warehouse, "java.io.tmpdir": scratch}
        arguments = [
            *("-cp", os.pathsep.join(class_path()), "org.junit.platform.console.ConsoleLauncher", "execute"),
            *("--include-engine=junit-jupiter", "--disable-banner", "--details=none", f"--reports-dir={scratch}"),
            *(f"--select-class={name}" for name in classes),
            *(f"--include-methodname={pattern}" for pattern in methods),
        ]
        output = java(properties, arguments, RUN_SECONDS, accepted=(0, 1))  # 1: a test failed
        report = Path(scratch, "TEST-junit-jupiter.xml")
        if not report.exists():
            raise RuntimeError(f"the kit did not run:\n{output[-4000:]}")
        return read_report(report)


def read_report(report: Path) -> list[Result]:
    kits = {name: kit for kit, name in CLASSES.items()}
    return sorted(
        outcome(f"{kits[case.attrib['classname']]}.{re.sub(r'[(].*[)]', '', case.attrib['name'])}", case)
        for case in ElementTree.parse(report).iter("testcase")
    )


def outcome(name: str, case: ElementTree.Element) -> Result:
    bad = [*case.iter("failure"), *case.iter("error")]
    skipped = [*case.iter("skipped")]
    why = "\n".join(without_trace(element.text or "") for element in bad or skipped)
    return Result(name, "fail" if bad else "skip" if skipped else "pass", why)


def without_trace(text: str) -> str:
    """The messages of an exception and of its causes."""
    return "\n".join(line for line in text.splitlines() if not re.match(r"\s+(at |\.\.\. \d)", line)).strip()


def class_path() -> list[str]:
    """The kit's jars, fetched the first time and whenever ivy.xml changes or one of them is gone."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mergus" / "rck"
    cache.mkdir(parents=True, exist_ok=True)
    known = cache / f"classpath-{sha256(IVY_FILE.read_bytes()).hexdigest()[:16]}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Ivy's cache is not made for two at once
        if not known.exists() or not all(Path(jar).exists() for jar in jars(known)):
            fresh = known.with_suffix(".new")
            resolve(fresh)
            fresh.replace(known)
    return [*jars(known), *map(str, sorted(SPARK_JARS.glob("hadoop-client-*.jar")))]


def jars(path_file: Path) -> list[str]:
    return path_file.read_text().strip().split(os.pathsep)


def resolve(target: Path) -> None:
    """Have Ivy put the jars into its own default cache and write their class path to a file."""
    (ivy,) = SPARK_JARS.glob("ivy-*.jar")
    arguments = ["-jar", str(ivy), "-ivy", str(IVY_FILE), "-confs", "default", "-cachepath", str(target)]
    java({"user.home": str(Path.home())}, arguments, RESOLVE_SECONDS)


def java(
    properties: Mapping[str, str], arguments: Sequence[str], seconds: int, *, accepted: Sequence[int] = (0,)
) -> str:
    """Run Java to its end; what it printed."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else "java"
    # a run of a minute gains nothing from the second compiler, and pays for it
    command = [program, "-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += [*(f"-D{key}={value}" for key, value in properties.items()), *arguments]
    # the kit would take these for properties of its catalog client, too
    env = {key: value for key, value in os.environ.items() if not key.startswith("CATALOG_")}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False
    )
    if done.returncode not in accepted:
        raise RuntimeError(f"java ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout
