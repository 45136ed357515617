"""Takes what `files` names in pyproject.toml from the folder above into source distribution and wheel; in an unpacked source distribution
it lies in the folder itself. hatchling's own `force-include` would also copy it into an editable installation, where a copy would hide the
clone.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class FilesFromAbove(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            above = (
                "" if Path(self.root, "PKG-INFO").exists() else "../"
            )  # every source distribution has that file
            build_data["force_include"] |= {f"{above}{path}": path for path in self.config["files"]}
