"""A template and its modules, deployed by simulation: which resources, with which bodies, in which order.

What the platform would fill in (addresses of a storage account, ids of an identity) comes from `providers`. As in Azure,
a module that is not deployed has no outputs, names of deployments in a resource group are unique, and a circle is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bicep_language.evaluation import (
    NOTHING,
    BicepEvaluationError,
    Evaluator,
    Locals,
    NotDeployed,
    names_in,
)
from tests.bicep_language.functions import functions_in, typed
from tests.bicep_language.nodes import Expression, For, Literal, Object, Resource, Template, Type
from tests.bicep_language.parser import read
from tests.bicep_language.providers import provided
from tests.bicep_language.scopes import Scope

NOT_IN_THE_BODY = {"name", "parent", "scope", "dependsOn"}
PLAIN_TYPES: dict[str, type] = {"string": str, "int": int, "bool": bool, "object": dict, "array": list}


@dataclass(frozen=True, slots=True)
class Placed:
    """One resource. `after` are the ids of all it waits for, itself or through others."""

    id: str
    type: str
    api_version: str
    name: str
    body: dict[str, Any]
    file: str
    symbol: str
    after: frozenset[str]

    @property
    def properties(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body.get("properties", {})
        return found


@dataclass(frozen=True, slots=True)
class Skipped:
    """A module whose condition is false, and what it would have been deployed to."""

    symbol: str
    scope: Scope
    after: frozenset[str]


@dataclass(slots=True)
class Deployment:
    resources: list[Placed] = field(default_factory=list)
    existing: list[Placed] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    modules: list[tuple[str, str, str]] = field(default_factory=list)  # scope, name, file
    outputs: dict[str, Any] = field(default_factory=dict)

    def of_type(self, kind: str) -> list[Placed]:
        return [resource for resource in self.resources if resource.type == kind]


def expand(path: Path, parameters: Mapping[str, Any], *, subscription: str) -> Deployment:
    """Raises BicepSyntaxError, or BicepEvaluationError with the file."""
    deployment = Deployment()
    template = read(path.read_text(encoding="utf-8"))
    expansion = _Expansion(deployment, template, path, parameters, Scope(subscription), frozenset())
    deployment.outputs = expansion.run()
    return deployment


class _Expansion:
    """One template at one place."""

    def __init__(
        self,
        deployment: Deployment,
        template: Template,
        path: Path,
        parameters: Mapping[str, Any],
        scope: Scope,
        after: frozenset[str],
    ) -> None:
        self._deployment = deployment
        self._template = template
        self._path = path
        self._scope = scope
        self._after = after
        self._values: dict[str, Any] = {}
        self._waits: dict[str, frozenset[str]] = {}  # symbol: ids it makes, and all that those wait for
        self._begun: list[str] = []
        self._evaluator = Evaluator(self._lookup, functions_in(scope, path.parent))
        if template.scope != scope.kind:
            raise self._error(f"it is for a {template.scope}, and is deployed to a {scope.kind}")
        self._set_parameters(parameters)

    def run(self) -> dict[str, Any]:
        for name in (*self._template.resources, *self._template.modules):
            self._lookup(name)
        for name in self._template.variables:
            self._lookup(name)
        return {
            name: self._checked(name, output.type, self._evaluate(output.value))
            for name, output in self._template.outputs.items()
        }

    # -- names ---------------------------------------------------------------------------------------

    def _lookup(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if name in self._begun:
            raise self._error(f"a circle: {' -> '.join([*self._begun, name])}")
        self._begun.append(name)
        if name in self._template.variables:
            found = self._evaluate(self._template.variables[name])
        elif name in self._template.resources:
            found = self._deploy(name, self._template.resources[name])
        elif name in self._template.modules:
            found = self._deploy(name, self._template.modules[name])
        else:
            raise self._error(f"the name {name} is not declared")
        self._begun.pop()
        self._values[name] = found
        return found

    def _evaluate(self, node: Expression, local: Locals = NOTHING) -> Any:
        try:
            return self._evaluator.value(node, local)
        except BicepEvaluationError as error:
            if str(error).startswith(self._path.name):
                raise
            raise self._error(str(error)) from error

    def _set_parameters(self, given: Mapping[str, Any]) -> None:
        declared = self._template.parameters
        if unknown := set(given) - set(declared):
            raise self._error(f"unknown parameters: {sorted(unknown)}")
        for name, parameter in declared.items():
            if name not in given and parameter.default is None:
                raise self._error(f"the parameter {name} is missing")
            value = given[name] if name in given else self._evaluate_default(parameter.default)
            self._values[name] = self._checked(name, parameter.type, value)
            self._check_decorators(name, value)

    def _evaluate_default(self, node: Expression | None) -> Any:
        return None if node is None else self._evaluate(node)

    def _checked(self, name: str, kind: Type, value: Any) -> Any:
        if kind.many:
            if not isinstance(value, list):
                raise self._error(f"{name} is {value!r}, an array is accepted")
            return [self._checked(name, Type(kind.name), item) for item in value]
        members = self._template.types.get(kind.name)
        if value is None and kind.optional:
            return value
        wanted = dict if members is not None else PLAIN_TYPES[kind.name]
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise self._error(f"{name} is {value!r}, {kind.name} is accepted")
        if members is not None:
            self._check_members(name, members, value)
        return value

    def _check_members(self, name: str, members: Mapping[str, Type], value: Mapping[str, Any]) -> None:
        if unknown := set(value) - set(members):
            raise self._error(f"{name} has unknown members: {sorted(unknown)}")
        for member, kind in members.items():
            if member in value or not kind.optional:
                self._checked(f"{name}.{member}", kind, value.get(member))

    def _check_decorators(self, name: str, value: Any) -> None:
        decorators = self._template.parameters[name].decorators
        limits = {key: self._evaluate(given[0]) for key, given in decorators.items() if given}
        if "allowed" in limits and value not in limits["allowed"]:
            raise self._error(f"{name} is {value!r}, accepted: {limits['allowed']}")
        size = value if isinstance(value, int) else len(value or "")
        if size < limits.get("minValue", limits.get("minLength", size)):
            raise self._error(f"{name} is {value!r}, which is too small or too short")
        if size > limits.get("maxValue", limits.get("maxLength", size)):
            raise self._error(f"{name} is {value!r}, which is too large or too long")

    # -- resources and modules --------------------------------------------------------------------------

    def _deploy(self, symbol: str, declared: Resource) -> Any:
        after = self._after | self._waited_for(declared)
        if isinstance(declared.body, For):
            made = [
                self._one(symbol, declared, declared.body.body, local, after)
                for local in self._evaluator.rounds(declared.body)
            ]
        elif declared.condition is not None and not self._evaluate(declared.condition):
            self._skip(symbol, declared, after)
            self._waits[symbol] = after
            return NotDeployed(f"{self._path.name}: {symbol}")
        else:
            made = [self._one(symbol, declared, declared.body, NOTHING, after)]
        self._waits[symbol] = after.union(*(ids for _, ids in made))
        values = [value for value, _ in made]
        return values if isinstance(declared.body, For) else values[0]

    def _waited_for(self, declared: Resource) -> frozenset[str]:
        """Ids of all that is named in the declaration, directly or through variables, and of what that waits for."""
        found: frozenset[str] = frozenset()
        seen: set[str] = set()
        names = [*names_in(declared.body), *(names_in(declared.condition) if declared.condition else ())]
        while names:
            name = names.pop()
            if name in seen or name in self._template.parameters:
                continue
            seen.add(name)
            if name in self._template.variables:
                names += names_in(self._template.variables[name])
            elif name in {*self._template.resources, *self._template.modules}:
                self._lookup(name)
                found |= self._waits[name]
        return found

    def _skip(self, symbol: str, declared: Resource, after: frozenset[str]) -> None:
        if declared.path is not None:
            scope = self._scope_of(_entry(declared.body, "scope"), NOTHING)
            self._deployment.skipped.append(Skipped(symbol, scope, after))

    def _scope_of(self, node: Expression | None, local: Locals) -> Scope:
        if node is None:
            return self._scope
        try:
            return Scope.of(self._evaluate(node, local)["id"])
        except ValueError as error:
            raise self._error(f"a scope: {error}") from error

    def _one(
        self, symbol: str, declared: Resource, body: Expression, local: Locals, after: frozenset[str]
    ) -> tuple[Any, frozenset[str]]:
        if declared.path is not None:
            return self._module(declared.path, body, local, after)
        placed = self._placed(symbol, declared, body, local, after)
        (self._deployment.existing if declared.existing else self._deployment.resources).append(placed)
        short = placed.name.rpartition("/")[2]  # what was written as its name, without those of its parents
        value = {**placed.body, "id": placed.id, "name": short, "type": placed.type}
        value["properties"] = {**placed.properties, **provided(placed.type, placed.name, placed.id)}
        return value, frozenset() if declared.existing else frozenset({placed.id})

    def _module(
        self, path: str, body: Expression, local: Locals, after: frozenset[str]
    ) -> tuple[Any, frozenset[str]]:
        scope = self._scope_of(_entry(body, "scope"), local)
        name = self._evaluate(_required(body, "name"), local)
        file = (self._path.parent / path).resolve()
        at = (scope.id.lower(), name)
        if at in {known[:2] for known in self._deployment.modules}:
            raise self._error(f"two modules are called {name} in {scope.id}")
        self._deployment.modules.append((*at, file.name))
        given = _entry(body, "params")
        parameters = {} if given is None else self._evaluate(given, local)
        before = len(self._deployment.resources)
        template = read(file.read_text(encoding="utf-8"))
        outputs = _Expansion(self._deployment, template, file, parameters, scope, after).run()
        made = frozenset(resource.id for resource in self._deployment.resources[before:])
        return {"name": name, "outputs": outputs}, made

    def _placed(
        self, symbol: str, declared: Resource, body: Expression, local: Locals, after: frozenset[str]
    ) -> Placed:
        assert isinstance(body, Object)
        name = self._evaluate(_required(body, "name"), local)
        content = {
            entry.key.value: self._evaluate(entry.value, local)
            for entry in body.entries
            if isinstance(entry.key, Literal) and entry.key.value not in NOT_IN_THE_BODY
        }
        parent, scope = _entry(body, "parent"), _entry(body, "scope")
        if parent is not None:
            owner = self._evaluate(parent, local)
            identifier = f"{owner['id']}/{declared.type.rpartition('/')[2]}/{name}"
            name = "/".join(identifier.rpartition("/providers/")[2].split("/")[2::2])
        else:
            root = self._scope.id if scope is None else self._evaluate(scope, local)["id"]
            identifier = self._id_at(root, declared.type, name)
        return Placed(
            identifier,
            declared.type,
            declared.api_version,
            name,
            {str(key): value for key, value in content.items()},
            self._path.name,
            symbol,
            after,
        )

    def _id_at(self, root: str, kind: str, name: str) -> str:
        if kind == "Microsoft.Resources/resourceGroups":
            return f"{root}/resourceGroups/{name}"
        try:
            return f"{root}/providers/{typed(kind, name.split('/'))}"
        except ValueError as error:
            raise self._error(str(error)) from error

    def _error(self, text: str) -> BicepEvaluationError:
        return BicepEvaluationError(f"{self._path.name}: {text}")


def _entry(body: Expression, key: str) -> Expression | None:
    """An entry of the object, which for a loop is that of each round."""
    shape = body.body if isinstance(body, For) else body
    assert isinstance(shape, Object)
    found = [entry.value for entry in shape.entries if entry.key == Literal(key)]
    return found[0] if found else None


def _required(body: Expression, key: str) -> Expression:
    found = _entry(body, key)
    if found is None:
        raise BicepEvaluationError(f"a declaration has no {key}")
    return found
