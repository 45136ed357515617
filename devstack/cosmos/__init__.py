"""A Cosmos DB account (API for NoSQL) that unmodified SDKs talk to, over plain HTTP.

    async with CosmosServer() as server:
        server.create_container("flights", "flights", "/origin", throughput=400)
        CosmosClient(server.endpoint, server.key)

Databases, containers, documents, queries, transactional batch, non-atomic bulk, physical
partitions that split and merge, throughput with its rules, request units with real 429s, the
change feed with the latest version of each document, time to live, unique keys, and faults on
request (see devstack.cosmos.server). Data is in memory only. Not there: stored procedures,
indexing policies (kept, not obeyed). A query over several physical partitions is answered as a
whole, so that it needs no plan.

    protocol/     requests, signatures, errors
    partitions/   partition keys, physical partitions, what these may spend
    query/        the query language
    store/        databases, containers, documents, throughput
    batches.py    transactional batch and bulk
    documents.py  answers about documents
    resources.py  answers about everything else
    service.py    the whole service as one function
    http.py       HTTP on a raw protocol
    server.py     all of it on one port
"""

from devstack.cosmos.partitions.budget import Prices
from devstack.cosmos.protocol.errors import CosmosError
from devstack.cosmos.server import DEFAULT_KEY, CosmosServer
from devstack.cosmos.service import RangeStatistics, Statistics

__all__ = ["DEFAULT_KEY", "CosmosError", "CosmosServer", "Prices", "RangeStatistics", "Statistics"]
