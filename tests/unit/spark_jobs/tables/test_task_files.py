"""What a task does with its rows in a store without a file system of Spark's."""

import itertools
import re
import uuid
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet
from pyspark.sql.types import StructType

from spark_jobs.tables import delta_log, file_systems, task_files
from spark_jobs.tables.file_systems import file_system, is_lake
from tidemark.analysis.errors import InputError, JobError


@pytest.fixture
def place():
    return f"memory://{uuid.uuid4()}"


@pytest.fixture
def task(monkeypatch):
    """Runs the work of one task after the other on batches, and gives the files that it tells of."""
    numbers = itertools.count()

    def run(url, batches, by=None):
        number = next(numbers)
        context = SimpleNamespace(partitionId=lambda: number, taskAttemptId=lambda: number + 40)
        monkeypatch.setattr(task_files.TaskContext, "get", lambda: context)
        [told] = task_files._written(iter(batches), url=url, by=by, prefix="ab")
        return told.to_pylist()

    return run


def batch(*rows):
    return pa.RecordBatch.from_pylist([{"n": n, "day": day} for n, day in rows])


def rows_at(url, files):
    asked = pa.RecordBatch.from_pylist([{"url": f"{url}/{file['path']}"} for file in files])
    return [row for each in task_files._read(iter([asked])) for row in each.to_pylist()]


def paths_at(url):
    system, root = file_system(url)
    return sorted(path.removeprefix(f"{root}/") for path in system.find(root))


def test_each_task_writes_files_of_its_own_and_none_without_rows(place, task):
    one = task(place, [batch((1, "a")), batch((2, "b"))])
    two = task(place, [batch((3, "a"))])

    assert [(each["path"], each["rows"]) for each in one + two] == [
        ("ab-00000-40.parquet", 2),
        ("ab-00001-41.parquet", 1),
    ]
    sizes = [file_system(place)[0].size(f"{place}/{each['path']}") for each in one + two]
    assert sizes == [each["size"] for each in one + two]
    assert [row["n"] for row in rows_at(place, one + two)] == [1, 2, 3]
    assert task(place, [batch((1, "a"))[:0]]) == []
    assert paths_at(place) == sorted(each["path"] for each in one + two)


def test_values_of_a_column_are_folders_of_rows_without_it(place, task):
    files = task(place, [batch((1, "a"), (2, "b"), (3, "a")), batch((4, "a"))], by="day")

    assert [(each["path"].partition("/")[0], each["day"], each["rows"]) for each in files] == [
        ("day=a", "a", 3),
        ("day=b", "b", 1),
    ]
    assert rows_at(place, files) == [{"n": 1}, {"n": 3}, {"n": 4}, {"n": 2}]


def test_what_was_there_goes_and_a_table_without_rows_has_its_columns(place, task):
    schema = StructType().add("n", "long").add("day", "timestamp")
    task(place, [batch((1, "a"), (2, "b"))])
    new = [each["path"] for each in task(place, [batch((4, "b"))])]

    task_files.remove_others(place, new)
    assert paths_at(place) == new
    empty = task_files.add_empty(place, schema)
    task_files.remove_others(place, [empty])
    assert paths_at(place) == [empty]
    system, root = file_system(place)
    with system.open(f"{root}/{empty}") as file:
        assert parquet.read_schema(file).names == ["n", "day"]


def test_tables_whose_files_do_not_tell_all_are_refused(place, task):
    task(place, [batch((1, "a"))], by="day")

    with pytest.raises(InputError, match="partitioned tables need"):
        task_files.parquet_files([place])


def test_a_data_lake_is_told_by_its_url_and_other_kinds_are_refused():
    assert [is_lake(url) for url in ("az://c/x", "abfss://c@a/x", "/az/x", "s3://c/x")] == [
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(InputError, match="'nosuch://x' cannot be opened"):
        file_system("nosuch://x")


def test_a_merge_into_a_table_that_is_partitioned_by_a_text_with_a_space_replaces_its_rows(tmp_path):
    """Which deltalake 1.5.0 tripled, and 1.6.0 failed at."""
    table, rows = tmp_path / "table", tmp_path / "rows"
    rows.mkdir()
    start = pa.table({"target": ["a b", "a b", "c"], "at": [1, 2, 1], "value": [1.0, 2.0, 3.0]})
    write_deltalake(table, start, partition_by=["target"])
    parquet.write_table(
        pa.table({"target": ["a b", "d e"], "at": [2, 1], "value": [20.0, 4.0]}), rows / "r.parquet"
    )

    for _ in range(2):
        delta_log.merge(table, rows, ["target", "at"])

    found = pa.table(DeltaTable(table).to_pyarrow_table()).to_pylist()
    assert sorted((row["target"], row["at"], row["value"]) for row in found) == [
        ("a b", 1, 1.0), ("a b", 2, 20.0), ("c", 1, 3.0), ("d e", 1, 4.0),
    ]  # fmt: skip
    wanted = re.search(
        r'"deltalake>=([\d.]+),<2"', (Path(__file__).parents[4] / "cli" / "pyproject.toml").read_text()
    )
    assert tuple(map(int, wanted[1].split("."))) >= (1, 6, 6)


def test_a_store_that_cannot_be_reached_is_one_line_and_not_an_empty_folder(monkeypatch):
    options = {
        "account_name": "a",
        "account_key": "YWJj",
        "endpoint": "http://127.0.0.1:9/a",
        "allow_http": "true",
        "max_retries": "0",
    }
    monkeypatch.setattr(delta_log, "deltas_store", lambda url: (url, options))

    with pytest.raises(
        JobError, match=r"^az://c/out/runs cannot be looked at: Generic MicrosoftAzure error [^\n\x1b]*$"
    ):
        delta_log.read_runs("az://c/out")


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        (
            {"AZURE_STORAGE_CONNECTION_STRING": "BlobEndpoint=http://h:1/a;AccountName=a;AccountKey=YWJj=="},
            {"account_name": "a", "account_key": "YWJj==", "endpoint": "http://h:1/a", "allow_http": "true"},
        ),
        (
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "YWJj"},
            {"account_name": "a", "account_key": "YWJj"},
        ),
        (
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=2"},
            {"account_name": "a", "sas_token": "sv=1&sig=2"},
        ),
        ({"AZURE_STORAGE_ACCOUNT_NAME": "a"}, {"account_name": "a", "bearer_token": "t for storage"}),
    ],
)
def test_deltalake_opens_a_lake_with_the_identity_of_fsspec(monkeypatch, variables, options):
    class Credential:
        def get_token(self, scope):
            return SimpleNamespace(token={file_systems._SCOPE: "t for storage"}[scope])

    names = ("CONNECTION_STRING", "ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN")
    for name in names:
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    known = {name.lower(): variables.get(f"AZURE_STORAGE_{name}") for name in names}
    system = SimpleNamespace(**known, sync_credential=Credential())
    monkeypatch.setattr(file_systems, "file_system", lambda _url: (system, "c/out"))

    assert file_systems.deltas_store("abfss://c@a.dfs.core.windows.net/out") == ("az://c/out", options)
