"""Routes: which sink a document goes to, and what is done there. In order; the first that matches takes it.

`when` and `operation_from` see the document as the route finds it; `id`, `ttl`, `version` and `patch` as the route's own
steps leave it, so that what these hash or drop is nowhere. A document that is null, or an event without a body, is a
tombstone: only routes with `delete_when_empty` take it, as a delete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from consumer.mapping.operations import OperationRule, WriteOptions, parse_patch, patch_steps
from consumer.mapping.preparing import MapDocuments
from consumer.mapping.steps.chain import Document, Step, run_steps
from consumer.mapping.steps.expression import Condition, Term, value_term
from consumer.mapping.steps.options import Name, OptionError, Options, Settings, read_all, read_paths
from consumer.mapping.steps.paths import WrongTypeError, kind, path_text, value_text
from consumer.mapping.steps.table import Problems, read_steps
from consumer.model import Dropped, Event, Mapped, Operation, Rejection, Write
from tidemark.foundation.errors import SettingsError

REASONS = {
    "step": "a step met a value of a wrong type",
    "route": "a route met a value of a wrong type: in `when`, `id`, `ttl` or `version`",
    "operation": "`operation_from` finds no operation",
    "patch": "a step of a patch finds no value",
    "no_route": "no route takes the document",
    "tombstone": "the event has no body, or its document is null, and no route with `delete_when_empty` takes it",
    "not_object": "JSON, but not an object",
}
"""Every reason for a rejection in this module."""

ROUTE_BITS = 60
"""Documents of a second route into the same sink have their indexes from here on, so that ids made of positions differ."""

ELSEWHERE = Dropped("other_sink")
"""What a mapper that is about one sink makes of a write into another one."""

Result = Write | Dropped | Rejection


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
    """The operation stands at a path, or in the application property x as `@property('x')`."""
    operations: Mapping[str, Operation] = {}
    """Which value of `operation_from` means which operation, without regard to case; without it the values are names of
    operations."""
    delete_when_empty: bool = False
    id: Name | None = None
    partition_key: tuple[Name, ...] = ()
    """The values of the container's partition key, if they are not in the document: paths, or values of the event."""
    ttl: Annotated[int, Meta(ge=1)] | Name | None = None
    version: Name | None = None
    patch: tuple[Name, ...] = ()
    """Steps such as `increment /total from /amount`; see docs/writing.md."""
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
        if self.patch and not can_patch and (self.operation_from is None or self.operations):
            wrong["patch"] = "found without the operation patch; operation = 'patch' is accepted beside it"
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
    operation: Callable[[Any, Event], Operation | Rejection]
    is_simple: bool
    """Whether it is one that upserts documents as they are."""
    steps: tuple[Step, ...]
    values: Mapping[str, Callable[[Any, Event], Any]]
    """What is computed for a Write, by its field."""

    @property
    def takes_all(self) -> bool:
        """Whether no document that is no tombstone gets behind it."""
        return self.condition is None and not self.also

    @property
    def is_plain(self) -> bool:
        """Whether it changes nothing: documents are written as they are."""
        return self.takes_all and self.is_simple

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
        if isinstance(operation, Rejection):
            return [operation]
        return [self._result(result, operation, event) for result in run_steps(self.steps, document, event)]

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
        given: dict[str, Any] = {"patch": ()}
        for name, compute in self.values.items():
            with (
                suppress(WrongTypeError) if value is None else nullcontext()
            ):  # the key of a tombstone need not be in it
                given[name] = compute(value, event)
        if value is None:
            operation, given = Operation.DELETE, {**given, "patch": (), "ttl": None}
            given["id"] = given.get("id", event.partition_key)
        elif operation is not Operation.PATCH:
            given["patch"] = ()
        if isinstance(given["patch"], Rejection):
            return given["patch"]
        return Write(event, value, self.offset + document.index, self.sink, operation, **given)


def tombstone(why: str) -> Rejection:
    return Rejection("tombstone", f"the event has no body, or its document is null, and {why}")


def not_object(document: Document) -> Rejection:
    return Rejection("not_object", f"document {document.index} is {kind(document.value)}; expected an object")


class Mapper:
    """What the documents of an event become: writes, drops and rejections, in order."""

    def __init__(
        self,
        steps: Sequence[Step],
        routes: Sequence[Route],
        transform: MapDocuments | None = None,
        only: str | None = None,
    ) -> None:
        """`only`: the sink whose writes are left; None: those of all."""
        self.only = only
        self._transform = transform
        self._steps = steps
        self._routes = routes
        # Steps of a later route change the document, which the write of an earlier one still needs.
        self._copy: Callable[[Any], Any] = deepcopy if any(route.steps for route in routes) else _shallow

    def __call__(self, event: Event, documents: Sequence[Any]) -> Mapped:
        results: list[Result] = []
        for given in self._given(event, documents):
            if not isinstance(given, Document):
                results.append(given)
                continue
            for document in run_steps(self._steps, given, event):
                results += self._routed(document, event)
        return results if self.only is None else [self._own(result) for result in results]

    def _own(self, result: Result) -> Result:
        return ELSEWHERE if isinstance(result, Write) and result.sink != self.only else result

    def after(self, transform: MapDocuments) -> Mapper:
        """The same steps and routes for what the user's function returns. Writes that say more than their document go past them."""
        return Mapper(self._steps, self._routes, transform, self.only)

    def only_into(self, sink: str) -> Mapper:
        """The same, of whose writes only those into one of several sinks are left."""
        return Mapper(self._steps, self._routes, self._transform, sink)

    def _given(self, event: Event, documents: Sequence[Any]) -> Iterator[Document | Result]:
        if self._transform is None:
            yield from (Document(place, value) for place, value in enumerate(documents))
            return
        results = self._transform(event, documents)
        for result in [results] if isinstance(results, Dropped | Rejection) else results:
            is_plain = isinstance(result, Write) and result == Write(event, result.document, result.index)
            yield (
                Document(result.index, result.document) if isinstance(result, Write) and is_plain else result
            )

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
            yield (
                tombstone("no route takes it")
                if value is None
                else Rejection(
                    "no_route",
                    f"no route of {len(self._routes)} takes document {document.index}; a route without `when` takes all",
                )
            )


def _shallow(value: Any) -> Any:
    return value if value is None else dict(value)


def read_route(
    options: RouteOptions, settings: Settings, *, name: str, sink: str, earlier: int = 0, splits: int = 0
) -> tuple[Route | None, Problems]:
    """The route, or what is wrong in it. `earlier` routes before it have the same sink; its hub has `splits` steps that split."""
    steps, problems = read_steps(options.steps, settings, splits=splits)
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
            structs.replace(options, to="", when=None) == RouteOptions(),
            tuple(steps),
            dict(_values(options)),
        )
    except OptionError as error:
        problems.append((error.option, error.text))
    return (None if problems else route), problems


def _term(option: str, text: str) -> Term:
    term: Term = read_all(option, value_term, [text])[0]
    return term


def _operation(options: RouteOptions) -> Callable[[Any, Event], Operation | Rejection]:
    standard = options.operation or Operation.UPSERT
    if options.operation_from is None:
        return lambda _document, _event: standard
    where = options.operation_from
    names = {value: str(operation) for value, operation in options.operations.items()} or None
    rule: OperationRule = read_all(
        "operation_from", lambda text: OperationRule.parse(text, names), [_rule(where)]
    )[0]

    def operation(document: Any, event: Event) -> Operation | Rejection:
        named = rule.of(document, event)
        if named is None and options.operation is None:
            accepted = ", ".join(rule.table)
            return Rejection(
                "operation", f"'{where}' is missing; accepted: {accepted}, or `operation` for such documents"
            )
        return standard if named is None else named

    return operation


def _rule(text: str) -> str:
    """An `operation_from` as OperationRule reads it. Raises OptionError."""
    if named := _PROPERTY.fullmatch(text):
        return f"property:{named[1]}"
    return text if text.startswith("property:") else path_text(read_paths("operation_from", [text])[0])


_PROPERTY = re.compile(r"@property\(['\"]([^'\"]+)['\"]\)")


def _values(options: RouteOptions) -> Iterator[tuple[str, Callable[[Any, Event], Any]]]:
    if options.id is not None:
        yield "id", _converted(options.id, _term("id", options.id), _id)
    if options.ttl is not None:
        fixed, where = _fixed_ttl(options.ttl)
        yield "ttl", (lambda *_: fixed) if fixed else _converted(where, _term("ttl", where), _ttl)
    if options.version is not None:
        yield "version", _converted(options.version, _term("version", options.version), _version)
    if options.partition_key:
        terms = [_term("partition_key", text) for text in options.partition_key]
        yield "partition_key", lambda document, event: tuple(term(document, event) for term in terms)
    if options.patch:
        try:
            rules = parse_patch(options.patch)
        except SettingsError as error:
            raise OptionError("patch", str(error)) from None
        yield "patch", lambda document, _event: () if document is None else patch_steps(rules, document)


def _fixed_ttl(given: int | str) -> tuple[int | None, str]:
    """The seconds, or else where they are. What the setting COSMOS_TTL takes is taken here too: as the path of a field, which no
    document has, it would keep documents for ever.
    """
    if isinstance(given, int):
        return given, ""
    try:
        if isinstance(rule := WriteOptions(ttl=given).ttl_rule, int):
            return rule, ""
    except SettingsError as error:
        if given[0].isdigit():
            raise OptionError("ttl", f"{error}; /{given} is a field of that name") from None
    return None, given.removeprefix("field:")


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
