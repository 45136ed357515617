"""What is stored in tables and files of a data lake, read without the code that wrote it."""

import asyncio
import io
import json
import shutil
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from tests.support.consumer.sinks import built
from tidemark.foundation.azure.connections import blob_container
from tidemark.testing import SinkTarget

COLUMNS = {"id": "string not null", "dest": "string", "text": "string", "gate": "long", "number": "long"}
NUMBER = {"number": "@sequence_number"}


def delta_rows(uri, storage=None):
    """The rows of a Delta table in the order of their events, by its own query engine."""
    # pyarrow's datasets are not used: their threads may abort Python when it ends (pyarrow 26, deltalake 1.6.6).
    table = DeltaTable(uri, storage_options=storage)
    found = QueryBuilder().register("rows", table).execute("SELECT * FROM rows ORDER BY number")
    return pa.table(found.read_all()).to_pylist()


async def parquet_rows(container, folder=""):
    """The rows of the files that manifests name, in the order of their events."""
    rows = []
    async for name in container.list_blob_names(name_starts_with=f"{folder}_manifests/"):
        if not name.endswith("last.json"):
            manifest = json.loads(await _read(container, name))
            file = pq.ParquetFile(io.BytesIO(await _read(container, f"{folder}{manifest['file']}")))
            rows += file.read().to_pylist()
    return sorted(rows, key=lambda row: row["number"])


async def _read(container, name):
    return await (await container.download_blob(name)).readall()


class DeltaTarget(SinkTarget):
    appends = True

    def __init__(self, uri, settings=None, storage=None):
        self.uri, self.settings, self.storage = uri, settings or {}, storage
        self.create = storage is not None
        self.unwritable = {"dest": 1}

    def sink(self):
        options = {"uri": self.uri, "columns": COLUMNS, "sources": NUMBER, "create": self.create}
        return built("delta", self.settings, **options)

    async def stored(self):
        return await asyncio.to_thread(delta_rows, self.uri, self.storage)

    async def remove(self):
        shutil.rmtree(self.uri)


class ParquetTarget(SinkTarget):
    appends = True

    def __init__(self, azurite):
        self.settings = {"AzureWebJobsStorage": azurite}
        self.container = f"lake-{uuid.uuid4().hex}"
        self.unwritable = {"dest": 1}
        self.client = blob_container(self.settings, "AzureWebJobsStorage", self.container)

    def sink(self):
        options = {"container": self.container, "folder": "flights", "columns": COLUMNS}
        return built("parquet", self.settings, **options, sources=NUMBER)

    async def stored(self):
        return await parquet_rows(self.client, "flights/")

    async def remove(self):
        await self.client.delete_container()
