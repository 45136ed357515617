"""Writes the pages of docs/reference that come from the code: `python -m devstack.documentation.reference`, or `make reference`.

A test compares what is committed with what the code gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from devstack.documentation import command_line, consumer_settings, files, python_api

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"

PAGES: Mapping[str, Callable[[], str]] = {
    **{f"{name}.md": page.text for name, page in python_api.PAGES.items()},
    "tidemark-toml.md": files.tidemark_toml,
    "consumer-file.md": files.consumer_file,
    "command-line.md": command_line.page,
    "../settings.md": consumer_settings.settings_page,
}
"""The pages by the names of their files."""


def main() -> None:
    for name, text in PAGES.items():
        path = FOLDER / name
        if not path.exists() or path.read_text("utf-8") != text():
            path.write_text(text(), "utf-8")
            print(f"wrote {path.resolve()}")


if __name__ == "__main__":
    main()
