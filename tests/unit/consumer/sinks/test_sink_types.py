"""Sinks as plug-ins: which type a name means, and what is told of one that cannot be used."""

import pytest
from msgspec import Struct

from consumer.mapping.documents import MappingOptions
from consumer.model import Stream
from consumer.sinks import types
from consumer.sinks.cosmos.options import CosmosOptions
from consumer.sinks.types import BUILT_IN, SinkContext, SinkType, find_sink_type, read_options
from tests.support.consumer.memory_sink import MemorySink
from tidemark.foundation.errors import SettingsError


class PlugInOptions(Struct, frozen=True):
    url: str
    tries: int = 3


PLUG_IN = SinkType("fancy", PlugInOptions, lambda options, context: MemorySink(MappingOptions(context.hub)))
NO_TYPE = "fancy"
NO_OPTIONS = SinkType("fancy", dict, PLUG_IN.build)
HERE = "tests.unit.consumer.sinks.test_sink_types"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package that names entry points of the group, as pip would write it."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package, **sinks):
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(f"{name} = {value}\n" for name, value in sinks.items())
        (info / "entry_points.txt").write_text(f"[{types.GROUP}]\n{lines}")

    return install


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_built_in_type_has_its_name_and_options_with_docstrings(name):
    kind = find_sink_type(name)

    assert kind.name == name
    assert kind.options.__doc__


def test_a_plug_in_is_found_by_the_name_of_its_entry_point(install):
    install("fancy-sink", fancy=f"{HERE}:PLUG_IN")
    kind = find_sink_type("fancy")
    context = SinkContext({}, "flights", Stream("ns", "flights", "$Default"), "fancy")

    assert isinstance(kind.build(read_options(kind, {"url": "x"}, "sinks.a"), context), MemorySink)


@pytest.mark.parametrize(
    ("sinks", "asked", "words"),
    [
        ({}, "fancy", ["no type of sink 'fancy'", "cosmos", types.GROUP]),
        ({"fancy": f"{HERE}:NO_TYPE"}, "fancy", ["fancy-sink", "is a str", "SinkType"]),
        ({"fancy": f"{HERE}:NO_OPTIONS"}, "fancy", ["fancy-sink", "msgspec Struct"]),
        ({"fancy": f"{HERE}:GONE"}, "fancy", ["fancy-sink", "cannot be imported", "GONE"]),
        ({"fancy": "no.such.module:SINK"}, "fancy", ["fancy-sink", "cannot be imported", "no.such"]),
        ({"cosmos": f"{HERE}:PLUG_IN"}, "cosmos", ["'cosmos' exists twice", "Tidemark", "fancy-sink"]),
    ],
)
def test_a_type_that_cannot_be_used_is_told_with_its_package(install, sinks, asked, words):
    install("fancy-sink", **sinks)
    with pytest.raises(SettingsError) as caught:
        find_sink_type(asked)

    assert [word for word in words if word not in str(caught.value)] == []


def test_one_name_in_two_packages_is_told_with_both(install):
    install("one", fancy=f"{HERE}:PLUG_IN")
    install("two", fancy=f"{HERE}:PLUG_IN")
    with pytest.raises(SettingsError, match=r"'fancy' exists twice, in (one|two) .* and (one|two) "):
        find_sink_type("fancy")


def test_a_plug_in_that_nobody_names_breaks_nothing(install):
    install("broken", fancy="no.such.module:SINK", cosmos_db="no.such.module:SINK")

    assert find_sink_type("cosmos").options is CosmosOptions


@pytest.mark.parametrize(
    ("table", "problems"),
    [
        ({}, ["sinks.a: 'url' is missing"]),
        ({"url": 1}, ["sinks.a: 'url': found 1; accepted: text"]),
        ({"url": "x", "trys": 1}, ["sinks.a: 'trys' is no option of fancy; did you mean 'tries'?"]),
        (
            {"zzz": 1, "tries": "many"},
            [
                "sinks.a: 'zzz' is no option of fancy; accepted: url, tries",
                "sinks.a: 'url' is missing",
                "sinks.a: 'tries': found 'many'; accepted: a whole number",
            ],
        ),
    ],
)
def test_every_problem_of_options_is_told_at_once(table, problems):
    with pytest.raises(SettingsError) as caught:
        read_options(PLUG_IN, table, "sinks.a")

    assert str(caught.value).splitlines() == problems


@pytest.mark.parametrize(
    ("kind", "table", "rest"),
    [
        ("cosmos", {"database": 5, "container": "c", "guard": "numbr"}, ["guard: the guard 'numbr' is not known; accepted: none, number, or field:<path>"]),
        ("delta", {"uri": 5, "commit_every": "often"}, ["commit_every is 'often'; accepted: seconds above 0, or a duration such as 30s"]),
        # What only follows from a value that was left out is no problem of its own.
        ("delta", {"uri": "x", "columns": 5, "create": True}, []),
        ("delta", {"uri": 5}, []),
    ],
)  # fmt: skip
def test_an_option_of_a_wrong_type_hides_no_other_problem(kind, table, rest):
    with pytest.raises(SettingsError) as caught:
        read_options(find_sink_type(kind), table, "sinks.a")

    first, *others = str(caught.value).splitlines()
    assert "found 5; accepted: " in first
    assert others == [f"sinks.a: {line}" for line in rest]


def test_a_missing_package_of_a_built_in_sink_names_the_extra(monkeypatch):
    monkeypatch.setattr(
        "tidemark.foundation.version.prefix", "elsewhere"
    )  # not a clone's own, which has all extras
    monkeypatch.setitem(BUILT_IN, "sql", "no_such_package.options:SQL")
    with pytest.raises(SettingsError, match=r"the sink sql needs the package no_such_package: .*consumer"):
        find_sink_type("sql")
