"""What is stored in tables and files of a data lake, read without the code that wrote it."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

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
