"""Routes: which sink a document goes to, and what is done there. In order; the first that matches takes it.

`when` and `operation_from` see the document as the route finds it; `id`, `ttl`, `version` and `patch` as the route's own
steps leave it, so that what these hash or drop is nowhere. A document that is null, or an event without a body, is a
tombstone: only routes with `delete_when_empty` take it, as a delete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, field

from consumer.mapping.steps.chain import Document, Step, run_steps
from consumer.mapping.steps.expression import Condition, Term, value_term
from consumer.mapping.steps.options import Name, OptionError, Options, Settings, read_all, read_paths
from consumer.mapping.steps.paths import WrongTypeError, kind, path_text, value_text
from consumer.mapping.steps.table import Problems, read_steps
from consumer.model import Dropped, Event, Mapped, Operation, PatchStep, Rejection, Write

REASONS = {
    "step": "a step met a value of a wrong type",
    "route": "a route met a value of a wrong type: in `when`, `operation_from`, `id`, `ttl`, `version` or `patch`",
    "no_route": "no route takes the document",
    "tombstone": "the event has no body, or its document is null, and no route with `delete_when_empty` takes it",
    "not_object": "JSON, but not an object",
}
"""Every reason for a rejection in this module."""

ROUTE_BITS = 60
"""Documents of a second route into the same sink have their indexes from here on, so that ids made of positions differ."""

Result = Write | Dropped | Rejection


class PatchOptions(Options, frozen=True):
    """One change of a patch: exactly one of `set`, `append`, `increment`, `remove` names the path in the stored document."""

    set: Name | UnsetType = UNSET
    append: Name | UnsetType = UNSET
    increment: Name | UnsetType = UNSET
    remove: Name | UnsetType = UNSET
    source: Name | UnsetType = field(name="from", default=UNSET)
    """Where the value comes from: a path in the document, or a value of the event such as `@enqueued_at`."""
    value: Any = UNSET
    """Instead of `from`: a constant."""

    def problems(self) -> Iterator[tuple[str, str]]:
        named = [name for name in _PATCHES if getattr(self, name) is not UNSET]
        if len(named) != 1:
            yield "", f"found {' and '.join(named) or 'no change'}; one of {', '.join(_PATCHES)} is accepted"
        values = [self.source, self.value].count(UNSET)
        if named == ["remove"] and values != 2:
            yield "remove", "found a value beside it; none is accepted"
        elif named != ["remove"] and values != 1:
            yield "from", "found none or two values; one of from and value is accepted"
        elif named == ["increment"] and self.value is not UNSET and not _is_number(self.value):
            yield "value", f"found {self.value!r}; a number is accepted"


_PATCHES = ("set", "append", "increment", "remove")


class RouteOptions(Options, frozen=True):
    """The options of one route."""

    to: Name = ""
    """The name of a sink; it may be left out if the file has one sink only."""
    when: Name | None = None
    """An expression; a route without it takes every document."""
    also: bool = False
    """True: routes after this one may take the document too."""
    drop: Name | None = None
    """Instead of `to`: the document is dropped, and counted by this reason."""
    operation: Operation | None = None
    operation_from: Name | None = None
    """The operation stands at a path, or in a value of the event such as `@property('op')`."""
    operations: Mapping[str, Operation] = {}
    """Which value of `operation_from` means which operation; without it the values are names of operations."""
    delete_when_empty: bool = False
    id: Name | None = None
    ttl: Annotated[int, Meta(ge=1)] | Name | None = None
    version: Name | None = None
    patch: tuple[PatchOptions, ...] = ()
    steps: tuple[dict[str, Any], ...] = ()

    def problems(self) -> Mapping[str, str]:
        wrong: dict[str, str] = {}
        if self.drop is not None:
            beside = [name for name in _NOT_WITH_DROP if getattr(self, name)]
            if beside:
                wrong["drop"] = f"found beside {', '.join(beside)}; only when and drop are accepted together"
        if self.operations and self.operation_from is None:
            wrong["operations"] = "found without operation_from, whose values it explains"
        can_patch = Operation.PATCH in {self.operation, *self.operations.values()}
        if can_patch and not self.patch:
            wrong["patch"] = (
                "is missing; the operation patch needs a list such as [{ increment = '/count', value = 1 }]"
            )
        if self.patch and not can_patch and (self.operation_from is None or self.operations):
            wrong["patch"] = "found without the operation patch; operation = 'patch' is accepted beside it"
        for position, change in enumerate(self.patch):
            for key, text in change.problems():
                wrong[f"patch[{position}].{key}".rstrip(".")] = text
        return wrong


_NOT_WITH_DROP = (
    "to",
    "also",
    "operation",
    "operation_from",
    "delete_when_empty",
    "id",
    "ttl",
    "version",
    "patch",
    "steps",
)


class Route(Struct, frozen=True):
    """A compiled route."""

    name: str
    sink: str
    offset: int
    condition: Condition | None
    also: bool
    drop: Dropped | None
    delete_when_empty: bool
    operation: Callable[[Any, Event], Operation]
    steps: tuple[Step, ...]
    values: Mapping[str, Callable[[Any, Event], Any]]
    """What is computed for a Write, by its field."""

    def takes(self, document: Any, event: Event) -> bool:
        """Raises WrongTypeError."""
        if document is None and not (self.delete_when_empty or self.drop):
            return False
        return self.condition is None or self.condition(document, event)

    def results(self, document: Document, event: Event) -> list[Result]:
        """Raises WrongTypeError."""
        if self.drop is not None:
            return [self.drop]
        operation = Operation.DELETE if document.value is None else self.operation(document.value, event)
        return [self._result(each, operation, event) for each in run_steps(self.steps, document, event)]

    def _result(self, document: Document, operation: Operation, event: Event) -> Result:
        value = document.value
        if document.is_over:
            return (
                Rejection(value.reason, f"{self.name}.{value.detail}")
                if isinstance(value, Rejection)
                else value
            )
        if value is None and not self.delete_when_empty:
            return tombstone(f"{self.name} has no delete_when_empty")
        if value is not None and not isinstance(value, dict):
            return not_object(document)
        given = {name: compute(value, event) for name, compute in self.values.items()}
        if value is None:
            operation, given = Operation.DELETE, {**given, "patch": (), "ttl": None}
            given["id"] = given.get("id", event.partition_key)
        elif operation is not Operation.PATCH:
            given["patch"] = ()
        return Write(event, value, self.offset + document.index, self.sink, operation, **given)


def tombstone(why: str) -> Rejection:
    return Rejection("tombstone", f"the event has no body, or its document is null, and {why}")


def not_object(document: Document) -> Rejection:
    return Rejection("not_object", f"document {document.index} is {kind(document.value)}; expected an object")


class Mapper:
    """What the documents of an event become: writes, drops and rejections, in order."""

    def __init__(self, steps: Sequence[Step], routes: Sequence[Route]) -> None:
        self._steps = steps
        self._routes = routes
        # Steps of a later route change the document, which the write of an earlier one still needs.
        self._copy: Callable[[Any], Any] = deepcopy if any(route.steps for route in routes) else _shallow

    def __call__(self, event: Event, documents: Sequence[Any]) -> Mapped:
        results: list[Result] = []
        for place, value in enumerate(documents):
            for document in run_steps(self._steps, Document(place, value), event):
                results += self._routed(document, event)
        return results

    def _routed(self, document: Document, event: Event) -> Iterator[Result]:
        value = document.value
        if document.is_over:
            yield value
            return
        if value is not None and not isinstance(value, dict):
            yield not_object(document)
            return
        is_taken = False
        for route in self._routes:
            try:
                if not route.takes(value, event):
                    continue
                is_taken = True
                given = Document(document.index, self._copy(value)) if route.also else document
                yield from route.results(given, event)
            except WrongTypeError as error:
                yield Rejection("route", f"{route.name}: {error}")
                return
            if not route.also:
                return
        if not is_taken:
            count = len(self._routes)
            yield (
                tombstone("no route takes it")
                if value is None
                else Rejection(
                    "no_route",
                    f"none of {count} routes takes document {document.index}; a route without `when` takes all",
                )
            )


def _shallow(value: Any) -> Any:
    return value if value is None else dict(value)


def read_route(
    options: RouteOptions, settings: Settings, *, name: str, sink: str, earlier: int
) -> tuple[Route | None, Problems]:
    """The route, or what is wrong in it. `earlier` routes before it have the same sink."""
    steps, problems = read_steps(options.steps, settings)
    problems = [(f"steps{where}", text) for where, text in problems]
    try:
        [condition] = read_all("when", Condition, [options.when]) if options.when else [None]
        route = Route(
            name,
            sink,
            earlier << ROUTE_BITS,
            condition,
            options.also,
            Dropped(options.drop) if options.drop else None,
            options.delete_when_empty,
            _operation(options),
            tuple(steps),
            dict(_values(options)),
        )
    except OptionError as error:
        problems.append((error.option, error.text))
    return (None if problems else route), problems


def _term(option: str, text: str) -> Term:
    term: Term = read_all(option, value_term, [text])[0]
    return term


def _operation(options: RouteOptions) -> Callable[[Any, Event], Operation]:
    standard = options.operation or Operation.UPSERT
    if options.operation_from is None:
        return lambda _document, _event: standard
    where, term = options.operation_from, _term("operation_from", options.operation_from)
    meanings = options.operations or {str(operation): operation for operation in Operation}
    if not options.patch:
        meanings = {value: meaning for value, meaning in meanings.items() if meaning is not Operation.PATCH}

    def operation(document: Any, event: Event) -> Operation:
        value = term(document, event)
        if value is None and options.operation is not None:
            return options.operation
        found = meanings.get(value_text(value, where))
        if found is None:
            raise WrongTypeError(f"'{where}' is {str(value)[:60]!r}; accepted are {', '.join(meanings)}")
        return found

    return operation


def _values(options: RouteOptions) -> Iterator[tuple[str, Callable[[Any, Event], Any]]]:
    if options.id is not None:
        yield "id", _converted(options.id, _term("id", options.id), _id)
    if isinstance(options.ttl, int):
        seconds = options.ttl
        yield "ttl", lambda _document, _event: seconds
    elif options.ttl is not None:
        yield "ttl", _converted(options.ttl, _term("ttl", options.ttl), _ttl)
    if options.version is not None:
        yield "version", _converted(options.version, _term("version", options.version), _version)
    if options.patch:
        changes = [_change(change, f"patch[{place}]") for place, change in enumerate(options.patch)]
        yield (
            "patch",
            lambda document, event: (
                () if document is None else tuple(change(document, event) for change in changes)
            ),
        )


def _converted(where: str, term: Term, convert: Callable[[Any, str], Any]) -> Callable[[Any, Event], Any]:
    return lambda document, event: convert(term(document, event), where)


def _id(value: Any, where: str) -> str:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise WrongTypeError(f"'{where}' is {kind(value)}; a text or a whole number is accepted as an id")
    return value_text(value, where)


def _ttl(value: Any, where: str) -> int | None:
    if value is None or (type(value) is int and (value == -1 or value > 0)):
        return value
    raise WrongTypeError(f"'{where}' is {value!r}; whole seconds from 1, or -1 for ever, are accepted")


def _version(value: Any, where: str) -> int | float | str:
    if isinstance(value, str) or _is_number(value):
        return value  # type: ignore[no-any-return]  # checked
    raise WrongTypeError(f"'{where}' is {kind(value)}; a number or a text is accepted as a version")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _change(options: PatchOptions, where: str) -> Callable[[Any, Event], PatchStep]:
    [op] = [name for name in _PATCHES if getattr(options, name) is not UNSET]
    path = path_text(read_paths(f"{where}.{op}", [getattr(options, op)])[0])
    if isinstance(options.source, UnsetType):
        step = PatchStep(op, path, None if options.value is UNSET else options.value)
        return lambda _document, _event: step
    source, term = options.source, _term(f"{where}.from", options.source)

    def change(document: Any, event: Event) -> PatchStep:
        value = term(document, event)
        if value is None or (op == "increment" and not _is_number(value)):
            expected = "a number" if op == "increment" else "a value"
            raise WrongTypeError(f"'{source}' is {kind(value)}; {where} expects {expected}")
        return PatchStep(op, path, value)

    return change
