"""Whether the code of a transform is told apart from what it was."""

import zipfile

import pytest

from spark_jobs.platform import user_code
from spark_jobs.platform.user_code import code_digest

FILES = {
    "uc_single.py": "import json\nimport uc_helper\nfrom tidemark import consuming\n\ndef f(document, event):\n    return document\n",
    "uc_helper.py": "one = 1\n",
    "uc_unused.py": "one = 1\n",
    "uc_package/__init__.py": "",
    "uc_package/documents.py": "from . import fields\nfrom .deep.more import LIMIT\n\ndef f(document, event):\n    return document\n",
    "uc_package/fields.py": "import uc_package.documents\n",  # in a circle
    "uc_package/deep/__init__.py": "",
    "uc_package/deep/more.py": "LIMIT = 7\n",
    "uc_package/unused.py": "def broken(",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("transform", "own"),
    [
        ("uc_single:f", {"uc_single.py", "uc_helper.py"}),
        (
            "uc_package.documents:f",
            {
                f"uc_package/{name}.py"
                for name in ("__init__", "documents", "fields", "deep/__init__", "deep/more")
            },
        ),
    ],
)
def test_the_code_is_the_module_and_what_it_imports_of_its_own(folder, transform, own):
    before = code_digest(transform)
    assert before
    changed = set()
    for name, text in FILES.items():
        (folder / name).write_text(f"{text}# changed\n")
        if code_digest(transform) != before:
            changed.add(name)
        (folder / name).write_text(text)

    assert changed == own
    assert code_digest(transform) == before


def test_line_ends_of_another_system_are_no_other_code(folder):
    before = code_digest("uc_single:f")
    path = folder / "uc_single.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))

    assert code_digest("uc_single:f") == before


def test_code_in_an_archive_is_read(tmp_path, monkeypatch):
    """As spark-submit gives it with --py-files."""
    digests = []
    for number in (1, 2):
        archive = tmp_path / f"code{number}.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("uc_zipped.py", f"def f(document, event):\n    return {number}\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(archive)
            digests.append(code_digest("uc_zipped:f"))

    assert all(digests)
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    "transform", ["uc_nowhere:f", "uc_nowhere.deeper:f", "sys:exit", "", "uc_bytes:f", ".:f"]
)
def test_code_that_cannot_be_read_has_no_digest(folder, transform):
    (folder / "uc_bytes.py").write_bytes(b"\xff\xfe")

    assert code_digest(transform) == ""


def test_code_that_does_not_parse_has_one(folder):
    assert code_digest("uc_package.unused:f")


def test_our_own_code_beside_a_transform_in_a_clone_is_not_its_code(monkeypatch):
    read = []
    monkeypatch.setattr(
        user_code, "_source_of", lambda name, ask=user_code._source_of: read.append(name) or ask(name)
    )

    assert code_digest("function_app:app")
    assert read == ["function_app"]
