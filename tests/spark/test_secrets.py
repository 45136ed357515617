"""Keys stand in no plan, explanation, event or error that Spark shows."""

import contextlib
import io
import json

import pytest
from pyspark.errors import PySparkException

from spark_jobs.platform.consumer_hub import hub_on_cosmos
from spark_jobs.platform.failures import input_errors
from spark_jobs.platform.source_options import settings_in
from spark_jobs.sources.cosmos import read_documents
from spark_jobs.sources.dead_letters import read_dead_letters
from spark_jobs.sources.event_hubs.source import read_event_hub
from spark_jobs.sources.records.telemetry import read_consumer_telemetry, read_decisions
from spark_jobs.task_errors import fails_without_secrets
from tidemark.analysis.errors import InputError, JobError

KEY = "VmVyeVNlY3JldEtleVZlcnlTZWNyZXRLZXk="
HUB = f"Endpoint=sb://h.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey={KEY}"
COSMOS = f"AccountEndpoint=https://localhost:1/;AccountKey={KEY};"
STORAGE = f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={KEY};EndpointSuffix=core.windows.net"
SETTINGS = {
    "EventHubConnection": HUB,
    "CosmosConnection": COSMOS,
    "AzureWebJobsStorage": STORAGE,
    "EVENTHUB_NAME": "h",
    "COSMOS_DATABASE": "db",
    "COSMOS_CONTAINER": "c",
}


def hub(spark, _):
    return read_event_hub(spark, {"hub": "h", "secretConnectionString": HUB})


def documents(spark, _):
    return read_documents(spark, {"secretSettings": json.dumps(SETTINGS), "database": "db", "container": "c"})


def letters(spark, _):
    return read_dead_letters(spark, hub_on_cosmos(SETTINGS, "a test reads"))


def table(spark, _):
    return read_decisions(spark, "table://AzureWebJobsStorage", settings=SETTINGS)


def files(spark, folder):
    (folder / "a.jsonl").write_text("")
    return read_consumer_telemetry(spark, str(folder), storage={"auto_mkdir": False, "account_key": KEY})


@pytest.mark.parametrize("read", [hub, documents, letters, table, files])
def test_a_key_stands_in_no_plan_and_in_no_event(spark, tmp_path, read, monkeypatch):
    frame = read(spark, tmp_path)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        frame.explain(extended=True)
        frame.explain("formatted")
    store = spark._jsparkSession.sharedState().statusStore()
    frame.createOrReplaceTempView("shown")
    with contextlib.suppress(
        PySparkException
    ):  # there is nothing to connect to: Spark shows the plan all the same
        spark.sql("explain codegen select * from shown").collect()
    events = str(store.executionsList().mkString("\n"))
    told = "\n".join([said.getvalue(), frame._jdf.queryExecution().toString(), events])

    assert len(told) > 500
    assert KEY not in told
    assert KEY not in str(spark.sql("explain extended select * from shown").collect())


@pytest.mark.parametrize(
    ("source", "option"),
    [
        ("eventhubs", "connectionString"),
        ("cosmos", "settings"),
        ("dead_letters", "settings"),
        ("consumer_telemetry", "storage"),
        ("eventhubs_capture", "storage"),
    ],
)
def test_an_option_whose_name_spark_would_not_redact_is_refused(spark, source, option):
    read_dead_letters(spark, hub_on_cosmos(SETTINGS, "a test reads"))  # registers it
    read_documents(spark, {"secretConnectionString": COSMOS, "database": "d", "container": "c"})
    given = {
        option: "{}",
        "hub": "h",
        "path": "/nowhere",
        "connection": "C",
        "database": "d",
        "container": "c",
    }
    with pytest.raises(InputError, match=f"name it secret{option[0].upper()}{option[1:]}"), input_errors():
        spark.read.format(source).options(**given).load().collect()


@fails_without_secrets
def failing(batches):
    """As a task whose SDK quotes what it was given."""
    yield from batches
    settings_in("cosmos", {"secretsettings": json.dumps({"A_SECRET": "h1dden-value"})})
    try:
        raise OSError("the SDK says h1dden-value")
    except OSError as error:
        raise JobError("the store cannot be reached: h1dden-value") from error


def test_an_error_of_a_task_reaches_the_driver_and_its_log_without_keys(spark, capfd):
    with pytest.raises(PySparkException) as failed:
        spark.range(1).mapInArrow(failing, "id long").collect()

    assert "JobError: the store cannot be reached: ***" in str(failed.value)
    assert "h1dden-value" not in str(failed.value) + "".join(capfd.readouterr())
