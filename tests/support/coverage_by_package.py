"""Prints how many statements of each package the tests have run: `./scripts/test --coverage`."""

import json
import os
import subprocess
from collections import defaultdict
from pathlib import Path


def main() -> None:
    file = Path(os.environ["COVERAGE_FILE"]).with_name("coverage.json")
    subprocess.run(["coverage", "json", "--quiet", "-o", str(file)], check=True)
    found = json.loads(file.read_text())
    packages: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, module in sorted(found["files"].items()):
        parts = Path(name).parts
        inner = parts[parts.index("mergus") + 1 :]
        package = inner[0] if len(inner) > 1 else "(top level)"
        packages[package][0] += module["summary"]["covered_lines"]
        packages[package][1] += module["summary"]["num_statements"]
    total = found["totals"]
    packages["all"] = [total["covered_lines"], total["num_statements"]]
    for package, (run, every) in packages.items():
        print(f"{package:14} {run:6} of {every:6} statements  {100 * run / every:5.1f} %")
    print(f"line by line: coverage report --data-file {os.environ['COVERAGE_FILE']}")


if __name__ == "__main__":
    main()
