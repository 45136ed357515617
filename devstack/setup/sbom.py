"""Bills of materials, in CycloneDX's JSON, of what is deployed: each package of a lock file with its hashes.

    python3 devstack/setup/sbom.py dist     dist/functions.cdx.json, dist/consumer-image.cdx.json, dist/local-stack-image.cdx.json

The same lock file gives the same document, byte for byte: there is no time in it. The standard library only.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).resolve().parents[2]
DEPLOYED = {
    "functions": "requirements.txt",
    "consumer-image": "infra/consumer/requirements.txt",
    "local-stack-image": "devstack/requirements.txt",
}
"""What is deployed or published, and the lock file of the Python packages that it holds."""

_ENTRY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)(?: ; ([^\\]+?))? *")


def document(lock: str, name: str, version: str) -> dict[str, Any]:
    """The bill of what `lock` installs for the application `name`. Raises ValueError for a line that is not of a lock."""
    components = [_component(entry) for entry in re.split(r"\n(?=\S)", lock.strip()) if entry]
    root = f"{name}@{version}"
    serial = uuid5(NAMESPACE_URL, f"{root}\n{lock}")
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": root, "name": name, "version": version}},
        "components": components,
        "dependencies": [{"ref": root, "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _component(entry: str) -> dict[str, Any]:
    """One package: a version has many files, one for each platform, of which one is installed."""
    first, *hashes = (line.strip().removesuffix("\\").strip() for line in entry.splitlines())
    match = _ENTRY.fullmatch(first)
    if match is None or not all(hash_.startswith("--hash=sha256:") for hash_ in hashes):
        raise ValueError(
            f"found {entry.splitlines()[0]!r}; accepted are lines of `make lock`: NAME==VERSION and its hashes"
        )
    name, version, marker = match.groups()
    reference = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
        "hashes": [{"alg": "SHA-256", "content": hash_.removeprefix("--hash=sha256:")} for hash_ in hashes],
    }
    if marker:
        component["properties"] = [{"name": "tidemark:marker", "value": marker}]
    return component


def main(folder: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder.mkdir(parents=True, exist_ok=True)
    for name, lock in DEPLOYED.items():
        text = (ROOT / lock).read_text(encoding="utf-8")
        made = document(text, f"tidemark-{name}", project["version"])
        path = folder / f"{name}.cdx.json"
        path.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path}: {len(made['components'])} packages\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: sbom.py FOLDER")
    main(Path(sys.argv[1]))
