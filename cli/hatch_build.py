"""Takes what `files` names in pyproject.toml from the folder above into the wheel. hatchling's own `force-include` would also
copy it into an editable installation, where a copy would hide the clone.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class FilesFromAbove(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"] |= {f"../{path}": path for path in self.config["files"]}
