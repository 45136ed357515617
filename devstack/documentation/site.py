"""Builds the site of docs/ into `.site/html`, with a strict check of its links.

    python3 devstack/documentation/site.py [ADDRESS OF THE REPOSITORY]

The pages are read on GitHub first, so they hold nothing that only the site's generator understands. On the way to the site
- a link that leaves docs/ becomes the address of that file in the repository, or plain text where no address is known;
- a comment `<!-- ::: module -->` becomes the description of that module by mkdocstrings;
- the script that the generator loads from another host is replaced by our own;
- decisions (docs/adr) are left out of the search, which lists them before the pages that say what to do. The navigation has them.

The generator has an environment of its own in `.site`: nothing else needs it. The standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
ADR = DOCS / "adr"
SITE = ROOT / ".site"
LOCK = ROOT / "requirements-docs.txt"
SHIM = Path(__file__).with_name("search_in_files.js")
STYLE = Path(__file__).with_name("site.css")

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
_FOREIGN_SCRIPT = re.compile(r"<script[^>]* src=\"?(?:https?:)?//[^>]*></script>")


def site_page(text: str, page: Path, repository: str) -> str:
    """A page of docs/ as the generator gets it. `repository`: the address on GitHub, or ''.

    Raises ValueError for a link to a file that does not exist.
    """
    parts = _FENCE.split(text)
    parts[::2] = [_described(_LINK.sub(_rewriter(page, repository), part)) for part in parts[::2]]
    head = _NOT_SEARCHED if page.is_relative_to(ADR) else ""
    return head + "".join(parts)


def _rewriter(page: Path, repository: str) -> Callable[[re.Match[str]], str]:
    def rewritten(link: re.Match[str]) -> str:
        mark, words, address = link.groups()
        name, hash_, fragment = address.partition("#")
        if not name or re.match(r"[a-z]+:", name):
            return link[0]
        target = Path(os.path.normpath(page.parent / name))
        if target.is_relative_to(DOCS) and target.is_file():
            return link[0]
        if mark or not target.exists() or not target.is_relative_to(ROOT):
            raise ValueError(f"{page.relative_to(ROOT)}: the link {address} leads nowhere")
        if not repository:
            return words
        kind = "tree" if target.is_dir() else "blob"
        return f"[{words}]({repository}/{kind}/HEAD/{target.relative_to(ROOT).as_posix()}{hash_}{fragment})"

    return rewritten


def _described(text: str) -> str:
    return re.sub(r"^<!-- (::: [\w.]+) -->$", r"\1", text, flags=re.MULTILINE)


def stage(repository: str) -> None:
    """Writes what the generator reads to `.site/pages`."""
    pages = SITE / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    for source in DOCS.rglob("*"):
        target = pages / source.relative_to(DOCS)
        if source.suffix == ".md":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(site_page(source.read_text("utf-8"), source, repository), "utf-8")
        elif source.is_file() and source.suffix != ".py":
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    shutil.copyfile(STYLE, pages / STYLE.name)


def install() -> Path:
    """The generator, in an environment of its own; it is made anew when the lock changes."""
    home, mark = SITE / "environment", SITE / "environment" / "lock.txt"
    python = home / "bin" / "python"
    if not mark.exists() or mark.read_text() != LOCK.read_text():
        uv = shutil.which("uv", path=f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
        venv.create(home, clear=True, with_pip=uv is None)
        installer = (
            [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
        )
        subprocess.run([*installer, "--quiet", "--require-hashes", "-r", str(LOCK)], check=True)
        mark.write_text(LOCK.read_text())
    return home / "bin" / "zensical"


def finish(folder: Path) -> None:
    """Takes the scripts of other hosts out of the pages. Raises ValueError if one is left, and if the search has decisions."""
    if re.search(rf'"location": ?"{ADR.name}/', (folder / "search.json").read_text("utf-8")):
        raise ValueError(
            f"the search has pages of {ADR.relative_to(ROOT)}: the generator reads no `search: exclude`"
        )
    shim = f"<script>{SHIM.read_text('utf-8')}</script>"
    for page in folder.rglob("*.html"):
        text = _FOREIGN_SCRIPT.sub(lambda _: shim, page.read_text("utf-8"))
        loads = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?((?:https?:)?//[^\s\">]+)", text)
        if loads:
            raise ValueError(f"{page.relative_to(folder)} loads {loads[0]} from another host")
        page.write_text(text, "utf-8")


def main(repository: str) -> None:
    generator = install()
    stage(repository.removesuffix("/").removesuffix(".git"))
    html = SITE / "html"
    shutil.rmtree(html, ignore_errors=True)
    subprocess.run(
        [str(generator), "build", "--clean", "--strict"],
        cwd=ROOT,
        check=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    finish(html)
    print(
        f"The site is in {html.relative_to(Path.cwd()) if html.is_relative_to(Path.cwd()) else html}: open index.html"
    )


if __name__ == "__main__":
    on_github = "GITHUB_REPOSITORY" in os.environ
    known = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}" if on_github else ""
    try:
        main(sys.argv[1] if sys.argv[1:] else known)
    except (ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
