"""The statements for each operation on rows with a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def is_older(table: sa.Table, guard: str, new: Any) -> Any:
    """Whether the stored row may be changed by an event with the value `new` in the guard's column."""
    return sa.or_(table.c[guard].is_(None), table.c[guard] < new)


def of_key(table: sa.Table, key: Sequence[str]) -> Any:
    return sa.and_(*(table.c[name] == sa.bindparam(f"key_{name}") for name in key))


def deletion(table: sa.Table, key: Sequence[str], guard: str) -> Any:
    where = of_key(table, key)
    if guard:
        where = sa.and_(where, is_older(table, guard, sa.bindparam(f"new_{guard}")))
    return sa.delete(table).where(where)


def creation(table: sa.Table, columns: Sequence[str], key: Sequence[str]) -> Any:
    """An insert that does nothing where a row of the key is."""
    there = sa.exists(sa.select(1).select_from(table).where(of_key(table, key)))
    values = [sa.bindparam(f"new_{name}", type_=table.c[name].type).label(name) for name in columns]
    return sa.insert(table).from_select(list(columns), sa.select(*values).where(sa.not_(there)))


def parameters(row: Mapping[str, Any], key: Sequence[str]) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in row.items()} | {f"key_{name}": row[name] for name in key}


class Upsert:
    """One statement for many rows if the database has an upsert, else two per row."""

    def __init__(
        self, table: sa.Table, columns: Mapping[str, Any], key: Sequence[str], dialect: str, guard: str = ""
    ) -> None:
        self._columns = list(columns)
        self._key = key
        self._guard = guard
        self._others = [name for name in columns if name not in key]
        self._insert: Any = sa.insert(table)
        if key and dialect in {"postgresql", "sqlite"}:
            build = postgresql.insert if dialect == "postgresql" else sqlite.insert
            self._insert = build(table)
            if self._others:
                new = {name: self._insert.excluded[name] for name in self._others}
                older = is_older(table, guard, self._insert.excluded[guard]) if guard else None
                self._insert = self._insert.on_conflict_do_update(
                    index_elements=list(key), set_=new, where=older
                )
            else:
                self._insert = self._insert.on_conflict_do_nothing(index_elements=list(key))
            key = ()
        self._update = self._update_of(table) if key else None
        if key and guard:
            self._insert = creation(table, self._columns, key)

    def _update_of(self, table: sa.Table) -> Any:
        # Assigning the key to itself keeps the statement valid if there are no other columns.
        changed = self._others or list(self._key)
        update = sa.update(table).where(of_key(table, self._key))
        if self._guard:
            update = update.where(is_older(table, self._guard, sa.bindparam(f"new_{self._guard}")))
        return update.values({name: sa.bindparam(f"new_{name}") for name in changed})

    def execute(self, connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
        if self._update is None:
            connection.execute(self._insert, rows)
            return
        for row in rows:
            changed = {f"new_{name}": row[name] for name in self._others or self._key}
            updated = connection.execute(
                self._update, {**changed, **{f"key_{name}": row[name] for name in self._key}}
            )
            if updated.rowcount == 0:
                connection.execute(self._insert, [parameters(row, self._key) if self._guard else row])
