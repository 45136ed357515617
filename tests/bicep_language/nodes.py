"""The tree of a template."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Literal:
    value: str | int | bool | None


@dataclass(frozen=True, slots=True)
class Text:
    """A string with what is interpolated: texts and expressions by turns."""

    parts: tuple[str | Expression, ...]


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    key: Expression
    value: Expression


@dataclass(frozen=True, slots=True)
class Object:
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Array:
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class For:
    item: str
    index: str | None
    items: Expression
    condition: Expression | None
    body: Expression


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Ternary:
    condition: Expression
    then: Expression
    otherwise: Expression


@dataclass(frozen=True, slots=True)
class Access:
    """`target.name`, `target[index]`; `safe` with a question mark."""

    target: Expression
    index: Expression
    safe: bool


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Lambda:
    parameters: tuple[str, ...]
    body: Expression


Expression = Literal | Text | Name | Object | Array | For | Unary | Binary | Ternary | Access | Call | Lambda


@dataclass(frozen=True, slots=True)
class Type:
    """A type as written: `string`, `target[]`, `array?`."""

    name: str
    many: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    type: Type
    default: Expression | None
    decorators: dict[str, tuple[Expression, ...]]


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource, or a module where `path` is its file; `body` is an Object, or a For of objects."""

    type: str
    api_version: str
    existing: bool
    condition: Expression | None
    body: Expression
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    type: Type
    value: Expression
    decorators: dict[str, tuple[Expression, ...]]


@dataclass(slots=True)
class Template:
    scope: str = "resourceGroup"
    types: dict[str, dict[str, Type]] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    variables: dict[str, Expression] = field(default_factory=dict)
    resources: dict[str, Resource] = field(default_factory=dict)
    modules: dict[str, Resource] = field(default_factory=dict)
    outputs: dict[str, Output] = field(default_factory=dict)

    def declared(self) -> set[str]:
        return {*self.parameters, *self.variables, *self.resources, *self.modules}
