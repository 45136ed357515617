"""Runs the queries of infra/queries on rows in memory: the operators they use, by Kusto's rules, and nothing else.

Why not DuckDB, which is among the tools: a translation needs a parser of KQL all the same, and SQL has another idea of what
is missing, of dynamic values and of types. Here a query that Kusto would refuse is refused: an unknown name, operator or
function; a dynamic value that is compared, computed with or grouped by without a cast.
"""
