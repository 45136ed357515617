"""Whole queries: parsed once, then run over documents."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from devstack.cosmos.query.expressions import Aggregate, Expression, ExpressionParser, Row
from devstack.cosmos.query.functions import AGGREGATES
from devstack.cosmos.query.lexer import tokens
from devstack.cosmos.query.values import sort_key

_CLAUSES = {"FROM", "WHERE", "GROUP", "ORDER", "OFFSET", "JOIN", "IN", "AS", "LIMIT"}


class Query(Struct, frozen=True):
    """A parsed SELECT. `select` is None for `*`; `value` is SELECT VALUE."""

    alias: str
    joins: tuple[tuple[str, Expression], ...]
    select: tuple[tuple[str, Expression], ...] | None
    value: bool
    distinct: bool
    aggregates: tuple[Aggregate, ...]
    where: Expression | None
    group_by: tuple[Expression, ...]
    order_by: tuple[tuple[Expression, bool], ...]
    offset: int
    limit: int | None

    @property
    def takes_all(self) -> bool:
        """Whether the answer is every document as it is, so that none has to be looked into."""
        return self.streams and self.select is None and self.where is None and not self.joins

    @property
    def counts_all(self) -> bool:
        """Whether the answer is just how many documents there are."""
        if self.where is not None or self.joins or self.group_by or self.order_by or self.distinct:
            return False
        once = [name for name, _ in self.aggregates] == ["COUNT"] and not self.offset and self.limit is None
        return once and self.aggregates[0][1](Row({})) is not UNSET

    def of_count(self, count: int) -> list[Any]:
        """The results over so many documents, for a query that only counts them."""
        return [self._project(Row({}, [count]))]

    @property
    def streams(self) -> bool:
        """Whether the answer over several ranges is just the answers over each, one after another."""
        whole = not self.order_by and not self.group_by and not self.aggregates and not self.distinct
        return whole and not self.offset and self.limit is None

    def run(self, documents: Iterable[Any]) -> list[Any]:
        """The results, in order; a document for which a VALUE is undefined gives none."""
        return self._results(Row({self.alias: document}) for document in documents)

    def within(self, row: Row) -> list[Any]:
        """The results of a subquery: it sees what the row of the outer query has."""
        return self._results([Row(dict(row.names))])

    def _results(self, starts: Iterable[Row]) -> list[Any]:
        rows: Iterator[Row] = self._rows(starts)
        if self.aggregates or self.group_by:
            rows = self._groups(rows)
        if self.order_by:
            rows = self._sorted(rows)
        results: Iterator[Any] = (value for row in rows if (value := self._project(row)) is not UNSET)
        if self.distinct:
            results = _distinct(results)
        end = None if self.limit is None else self.offset + self.limit
        return list(results)[self.offset : end]

    def _rows(self, starts: Iterable[Row]) -> Iterator[Row]:
        for start in starts:
            for row in self._joined(start, 0):
                if self.where is None or self.where(row) is True:
                    yield row

    def _joined(self, row: Row, level: int) -> Iterator[Row]:
        if level == len(self.joins):
            yield row
            return
        name, source = self.joins[level]
        items = source(row)
        for item in items if isinstance(items, list) else ():
            yield from self._joined(Row({**row.names, name: item}), level + 1)

    def _groups(self, rows: Iterable[Row]) -> Iterator[Row]:
        groups: dict[bytes, list[Row]] = {} if self.group_by else {b"": []}
        for row in rows:
            key = (
                msgspec.json.encode([_jsonable(part(row)) for part in self.group_by])
                if self.group_by
                else b""
            )
            groups.setdefault(key, []).append(row)
        for members in groups.values():
            values = [AGGREGATES[name](map(part, members)) for name, part in self.aggregates]
            yield Row(members[0].names if members else {}, values)

    def _sorted(self, rows: Iterable[Row]) -> Iterator[Row]:
        ordered = list(rows)
        for expression, descending in reversed(self.order_by):
            ordered.sort(key=lambda row, part=expression: sort_key(part(row)), reverse=descending)  # type: ignore[misc]
        return iter(ordered)

    def _project(self, row: Row) -> Any:
        if self.select is None:
            return row.names[self.alias]
        if self.value:
            return self.select[0][1](row)
        return {name: value for name, part in self.select if (value := part(row)) is not UNSET}


def parse(text: str, parameters: Mapping[str, Any] | None = None, *, now: float = 0.0) -> Query:
    """`now` in seconds since 1970, for functions of the current time. Raises CosmosError (400) that names what is not
    understood.
    """
    return _StatementParser(text, parameters or {}, now).query()


def parse_condition(text: str) -> Callable[[Any], bool]:
    """The test of a patch: `from c where ...`. Raises CosmosError (400)."""
    query = parse(f"SELECT * {text}")
    return lambda document: bool(query.run([document]))


class _StatementParser(ExpressionParser):
    def __init__(self, text: str, parameters: Mapping[str, Any], now: float) -> None:
        super().__init__(tokens(text), parameters, now)

    def query(self) -> Query:
        statement = self._statement()
        self.finish()
        return statement

    def _subquery(self) -> Callable[[Row], list[Any]]:
        outer, self.aggregates = self.aggregates, []
        query = self._statement()
        self.aggregates = outer
        self.expect(")")
        return query.within

    def _statement(self) -> Query:
        self.expect("SELECT")
        distinct = self.accept("DISTINCT") is not None
        top = self._whole() if self.accept("TOP") else None
        value = self.accept("VALUE") is not None
        select = self._projection(single=value)
        alias, joins = self._source()
        where = self.expression() if self.accept("WHERE") else None
        group_by = self._group_by()
        order_by = self._order_by()
        offset, limit = self._page()
        return Query(
            alias,
            joins,
            select,
            value,
            distinct,
            tuple(self.aggregates),
            where,
            group_by,
            order_by,
            offset,
            top if limit is None else limit,
        )

    def _projection(self, *, single: bool) -> tuple[tuple[str, Expression], ...] | None:
        if self.accept("*"):
            return None
        parts: list[tuple[str, Expression]] = []
        while True:
            parts.append(self._item(len(parts)))
            if single or self.accept(",") is None:
                return tuple(parts)

    def _item(self, position: int) -> tuple[str, Expression]:
        start = self._position
        expression = self.expression()
        if self.accept("AS"):
            return self.identifier(), expression
        if self.current.kind == "name" and self.current.value not in _CLAUSES:
            return self.identifier(), expression
        last = self._tokens[self._position - 1]
        if last.kind == "name":
            return last.text, expression
        if (
            last.text == "]"
            and self._tokens[self._position - 2].kind == "string"
            and self._position - start > 2
        ):
            return str(self._tokens[self._position - 2].value), expression
        return f"${position + 1}", expression

    def _source(self) -> tuple[str, tuple[tuple[str, Expression], ...]]:
        if self.accept("FROM") is None:
            return "c", ()
        alias = self.identifier()
        if self.accept("AS") or (self.current.kind == "name" and self.current.value not in _CLAUSES):
            alias = self.identifier()
        joins: list[tuple[str, Expression]] = []
        if self.accept("IN"):
            joins.append((alias, self.expression()))
            alias = "c"
        while self.accept("JOIN"):
            name = self.identifier()
            self.expect("IN")
            joins.append((name, self.expression()))
        return alias, tuple(joins)

    def _group_by(self) -> tuple[Expression, ...]:
        if self.accept("GROUP") is None:
            return ()
        self.expect("BY")
        parts = [self.expression()]
        while self.accept(","):
            parts.append(self.expression())
        return tuple(parts)

    def _order_by(self) -> tuple[tuple[Expression, bool], ...]:
        if self.accept("ORDER") is None:
            return ()
        self.expect("BY")
        parts: list[tuple[Expression, bool]] = []
        while True:
            expression = self.expression()
            descending = self.accept("DESC") is not None
            if not descending:
                self.accept("ASC")
            parts.append((expression, descending))
            if self.accept(",") is None:
                return tuple(parts)

    def _page(self) -> tuple[int, int | None]:
        if self.accept("OFFSET") is None:
            return 0, None
        offset = self._whole()
        self.expect("LIMIT")
        return offset, self._whole()

    def _whole(self) -> int:
        value = self._primary()(Row({}))
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.unexpected("a whole number")
        return value


def _jsonable(value: Any) -> Any:
    return {"undefined": True} if value is UNSET else value


def _distinct(values: Iterable[Any]) -> Iterator[Any]:
    seen: set[bytes] = set()
    for value in values:
        key = msgspec.json.encode(value, order="sorted")
        if key not in seen:
            seen.add(key)
            yield value
