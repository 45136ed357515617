"""The worked example of docs/adding-a-collector.md does what the page says."""

import re
import tomllib
from pathlib import Path

import pytest

from scaling.ports import CollectError
from scaling.service.registry import collector_class
from tidemark.foundation.settings_reader import parse_params

PAGE = Path(__file__).parents[4] / "docs" / "adding-a-collector.md"


def block(language: str) -> str:
    [text] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return text


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The class as a user's own module, and the options of the page's metric."""
    (tmp_path / "spool_folder.py").write_text(block("python"), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    metric = tomllib.loads(block("toml"))["targets"]["plan-spool"]["metrics"]["files"]
    cls = collector_class(metric.pop("collector"))
    count = metric.pop("count")
    return cls, count, metric


async def test_the_example_counts_the_files_of_a_folder(example, tmp_path):
    cls, count, options = example
    params, problems = parse_params(cls.Params, options)
    folder = tmp_path / "orders" / "in"
    folder.mkdir(parents=True)
    for name in ("a.xml", "b.xml", "c.txt"):
        (folder / name).touch()
    collector = cls(params, {"SPOOL_ROOT": str(tmp_path)})

    reading = await collector.collect(now=5.0)
    await collector.aclose()

    assert problems == {}
    assert (reading.at, reading.values[count]) == (5.0, 2.0)
    assert set(reading.values) == set(cls.COUNTS)
    assert cls.entity(params) == "spool_folder:orders/in/*.xml"


async def test_the_example_tells_rejected_files_apart(example, tmp_path):
    cls, _, _ = example
    for name in ("a.xml", "b.xml.rejected"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).touch()

    reading = await cls(cls.Params(folder="in"), {"SPOOL_ROOT": str(tmp_path)}).collect(now=5.0)

    assert reading.values == {"waiting": 1.0, "rejected": 1.0, "total": 2.0}


async def test_the_example_raises_for_a_missing_folder(example, tmp_path):
    cls, _, options = example
    collector = cls(cls.Params(**options), {"SPOOL_ROOT": str(tmp_path)})

    with pytest.raises(CollectError, match="does not exist"):
        await collector.collect(now=5.0)


def test_a_misspelled_option_of_the_example_is_reported(example):
    cls, _, _ = example

    _, problems = parse_params(cls.Params, {"foldr": "x"})

    assert "did you mean 'folder'?" in problems["foldr"]
    assert problems["folder"] == "is missing"
