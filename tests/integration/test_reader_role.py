"""Whoever may only read the storage account sees everything the commands show, also of an account nobody wrote to yet."""

from datetime import UTC, datetime, timedelta

import pytest
from azure.data.tables import AccountSasPermissions, ResourceTypes, TableServiceClient, generate_account_sas
from azure.data.tables.aio import TableServiceClient as AsyncTables

from consumer.telemetry.rate_orders import TableRateStore
from consumer.telemetry.stats_store import TableStatsStore
from scaling.log_entry import LogEntry, LogKind
from scaling.model import TargetState
from scaling.storage.decision_log import TableDecisionLog
from scaling.storage.states import TableStateStore
from tidemark.foundation.errors import StoreUnavailableError

pytestmark = pytest.mark.wire
PREFIX = "AzureWebJobsStorage"


@pytest.fixture
def reader(azurite):
    """Settings that may list and read rows, and nothing else."""
    with TableServiceClient.from_connection_string(azurite) as client:
        signature = generate_account_sas(
            client.credential,
            resource_types=ResourceTypes(container=True, object=True),
            permission=AccountSasPermissions(read=True, list=True),
            expiry=datetime.now(UTC) + timedelta(hours=1),
        )
        return {PREFIX: f"TableEndpoint={client.url};SharedAccessSignature={signature}"}


def table(store):
    return f"reader{store.TABLE}"


async def test_a_reader_reads_state_and_log_even_a_row_that_is_damaged(azurite, reader):
    owner = {PREFIX: azurite}
    states, log = (kind(owner, PREFIX, table=table(kind)) for kind in (TableStateStore, TableDecisionLog))
    await states.save(await states.load("plan"), TargetState(expected=3), {})
    await log.append([LogEntry("plan", 1.8e9, LogKind.DECISION, "decision", "hold", "within")])
    async with AsyncTables.from_connection_string(azurite) as service:
        rows = service.get_table_client(table(TableStateStore))
        (row,) = [row async for row in rows.list_entities()]
        await rows.upsert_entity({**row, "Data00": "not readable"})
    seen = TableStateStore(reader, PREFIX, table=table(TableStateStore))
    read = TableDecisionLog(reader, PREFIX, table=table(TableDecisionLog))

    (snapshot,) = (await seen.load_all(["plan"])).values()
    entries = (await read.read()).entries

    assert snapshot.corrupt
    assert [entry.line for entry in entries] == ["hold"]
    with pytest.raises(StoreUnavailableError, match="403"):
        await seen.save(snapshot, TargetState())
    for store in (states, log, seen, read):
        await store.aclose()


async def test_tables_that_are_not_there_are_empty_to_a_reader(reader):
    names = {kind: f"absent{kind.TABLE}" for kind in (TableStateStore, TableDecisionLog)}
    states, log = (kind(reader, PREFIX, table=name) for kind, name in names.items())
    stats, rates = (
        kind(reader, PREFIX, table=f"absent{kind.TABLE}") for kind in (TableStatsStore, TableRateStore)
    )

    assert (await states.load_all(["plan"]))["plan"].state == TargetState()
    assert (await log.read()).entries == ()
    assert (await log.read("plan")).entries == ()
    assert await stats.load_all(0.0) == []
    assert await rates.load_all() == {}
    for store in (states, log, stats, rates):
        await store.aclose()
