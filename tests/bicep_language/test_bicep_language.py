"""The reader of Bicep that the tests of infra/ stand on: what it accepts, what comes out, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bicep_language import BicepSyntaxError, Deployment, expand, read
from tests.bicep_language.evaluation import BicepEvaluationError, names_in

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"


@pytest.fixture
def deploy(tmp_path: Path) -> Any:
    """Deploys a text to a subscription; further texts are modules beside it."""

    def run(text: str, given: dict[str, Any] | None = None, **modules: str) -> Deployment:
        for name, module in modules.items():
            (tmp_path / f"{name}.bicep").write_text(module)
        path = tmp_path / "main.bicep"
        path.write_text(f"targetScope = 'subscription'\n{text}\n")
        return expand(path, given or {}, subscription=SUBSCRIPTION)

    return run


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3 - 4", 3),
        ("'a${1 + 1}b${'c${true}'}'", "a2bcTrue"),
        ("'it\\'s \\${x} \\n'", "it's ${x} \n"),
        ("'''\nplain ${x}\n'''", "plain ${x}\n"),
        ("!(1 == 1) || 'a' == 'a' && 2 > 1", True),
        ("true ? 'a' : 'b'", "a"),
        ("false\n  ? 'a'\n  : 'b'", "b"),
        ("null ?? 'b'", "b"),
        ("{ a: { 'b-c': [1, 2] } }.a['b-c'][1]", 2),
        ("{ a: 1 }.?b ?? 5", 5),
        ("[for i in range(0, 3): if (i != 1) {\n  at: i\n}]", [{"at": 0}, {"at": 2}]),
        ("[for (x, i) in ['a', 'b']: '${x}${i}']", ["a0", "b1"]),
        ("map(filter([1, 2, 3], x => x > 1), x => x * 2)", [4, 6]),
        ("reduce([1, 2, 3], 0, (all, x) => all + x)", 6),
        ("toObject(['a', 'b'], x => x, x => '${x}!')", {"a": "a!", "b": "b!"}),
        ("union({ a: { b: 1 }, c: 1 }, { a: { d: 2 }, c: 2 })", {"a": {"b": 1, "d": 2}, "c": 2}),
        ("union([1, 2, 1], [2, 3])", [1, 2, 3]),
        ("items({ b: 1, a: 2 })", [{"key": "a", "value": 2}, {"key": "b", "value": 1}]),
        ("cidrSubnet('10.0.0.0/24', 26, 3)", "10.0.0.192/26"),
        ("empty('') && empty([]) && empty({})", True),
        ("subscription().id", f"/subscriptions/{SUBSCRIPTION}"),
        (
            "subscriptionResourceId('A.B/c', 'd')",
            f"/subscriptions/{SUBSCRIPTION}/providers/A.B/c/d",
        ),
    ],
)
def test_an_expression_comes_to_its_value(deploy: Any, expression: str, value: Any) -> None:
    found = deploy(f"output it object = any(wrap)\nvar wrap = {{\n  it: {expression}\n}}")

    assert found.outputs == {"it": {"it": value}}


GROUP = (
    "resource group 'Microsoft.Resources/resourceGroups@2024-03-01' = {\n  name: 'rg'\n  location: 'x'\n}\n"
)
ACCOUNT = """param name string
resource account 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  name: name
  properties: {
    a: 1
  }
}
resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2023-05-01' = {
  parent: account
  name: 'default'
}
resource role 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: 'r'
  scope: account
}
output blob string = account.properties.primaryEndpoints.blob
output short string = blobs.name
"""


def module(name: str, *, condition: str = "", more: str = "") -> str:
    return (
        f"module {name} 'account.bicep' = {condition}{{\n  name: '{name}'\n  scope: group\n"
        f"  params: {{\n    name: 'st{name}'\n  }}\n{more}}}\n"
    )


def test_resources_have_ids_by_parent_and_scope_and_wait_for_what_they_name(deploy: Any) -> None:
    found = deploy(GROUP + module("m") + "output blob string = m.outputs.blob", account=ACCOUNT)
    group = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg"
    account = f"{group}/providers/Microsoft.Storage/storageAccounts/stm"
    expected = [
        group,
        account,
        f"{account}/blobServices/default",
        f"{account}/providers/Microsoft.Authorization/roleAssignments/r",
    ]

    assert [resource.id for resource in found.resources] == expected
    assert found.resources[2].name == "stm/default"
    assert found.resources[2].after == {group, account}
    assert found.outputs == {"blob": "https://stm.blob.core.windows.net/"}


def test_a_name_that_is_read_is_the_one_that_was_written(deploy: Any) -> None:
    found = deploy(GROUP + module("m") + "output short string = m.outputs.short", account=ACCOUNT)

    assert found.outputs == {"short": "default"}


def test_a_module_waits_for_those_that_it_depends_on_in_words(deploy: Any) -> None:
    text = GROUP + module("second", more="  dependsOn: [\n    first\n  ]\n") + module("first")
    found = deploy(text, account=ACCOUNT)

    (first,) = [resource for resource in found.resources if resource.name == "stfirst"]
    (second,) = [resource for resource in found.resources if resource.name == "stsecond"]
    assert first.id in second.after
    assert found.resources.index(first) < found.resources.index(second)


def test_a_module_that_is_left_out_makes_nothing_and_has_no_outputs(deploy: Any) -> None:
    left_out = GROUP + module("m", condition="if (false) ")

    assert [each.symbol for each in deploy(left_out, account=ACCOUNT).skipped] == ["m"]
    with pytest.raises(BicepEvaluationError, match="m is not deployed, and its outputs is read"):
        deploy(left_out + "output blob string = m.outputs.blob", account=ACCOUNT)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("var a = b\nvar b = a", "a circle: a -> b -> a"),
        ("output a string = missing", "missing is not declared"),
        ("output a string = 1", "a is 1, string is accepted"),
        ("output a string = split('x', '/')[2]", "there is no 2"),
        ("output a string = unheardOf()", "unheardOf is not known"),
        ("output a object = { b: 1, b: 2 }", "'b' twice"),
        ("param a int", "a is missing"),
        ("param a int = 3\noutput b bool = a ? true : false", "a bool is accepted"),
        ("@allowed([\n  'x'\n])\nparam a string = 'y'", "a is 'y', accepted"),
        ("@maxLength(2)\nparam a string = 'long'", "too long"),
        ("type t = {\n  b: string\n}\nparam a t[] = [\n  {\n    c: 1\n  }\n]", "unknown members"),
        ("type t = {\n  b: string\n}\nparam a t = {}", "a.b is None"),
        (GROUP + module("m") + module("n").replace("'n'", "'m'"), "two modules are called m"),
        (GROUP + module("m").replace("scope: group", "scope: subscription()"), "for a resourceGroup"),
        (GROUP + module("m").replace("name: 'stm'", "nane: 'stm'"), "unknown parameters: \\['nane'\\]"),
        (GROUP + module("m", condition="if (false) ").replace("group\n", "resourceGroup('', '')\n"), "scope"),
    ],
)
def test_what_cannot_be_deployed_is_refused_with_its_reason(deploy: Any, text: str, problem: str) -> None:
    with pytest.raises(BicepEvaluationError, match=problem):
        deploy(text, account=ACCOUNT)


@pytest.mark.parametrize(
    "text",
    [
        "var a = 'open",
        "var a = '''open",
        "var a = [1 2]",
        "var a = { b: 1 c: 2 }",
        "var a = (1, 2)",
        "var a = 1 var b = 2",
        "var a = #",
        "vor a = 1",
        "param a",
        "resource a = {}",
    ],
)
def test_what_is_no_bicep_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(BicepSyntaxError, match=r"line \d"):
        read(text)


def test_names_of_loops_and_functions_are_not_names_of_the_template() -> None:
    template = read("var a = [for (x, i) in b: '${x}${i}${c}']\nvar d = map(e, y => y + f)")

    assert {"b", "c"} == set(names_in(template.variables["a"]))
    assert {"e", "f"} == set(names_in(template.variables["d"]))
