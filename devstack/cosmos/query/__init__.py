"""The query language, as far as looking at the data needs it.

SELECT [DISTINCT] [TOP n] [VALUE] ... FROM ... [JOIN x IN c.list] [WHERE] [GROUP BY] [ORDER BY]
[OFFSET n LIMIT m], with the operators, functions and aggregates of devstack.cosmos.query.functions.
Subqueries, user-defined functions, spatial, vector and full-text functions are not known.
"""

from devstack.cosmos.query.statement import Query, parse, parse_condition

__all__ = ["Query", "parse", "parse_condition"]
