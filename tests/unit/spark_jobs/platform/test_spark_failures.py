"""What Spark says of a failure, of any version of it, and what people are told."""

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from spark_jobs.platform.failures import input_error_of, is_absence, reason_of
from spark_jobs.tables import places
from spark_jobs.telemetry_aggregation import job
from tidemark.analysis.errors import InputError, JobError


class OfSpark3(AnalysisException):
    """As Spark 3.5 has it, which does not know the word condition."""

    @property
    def getCondition(self):
        raise AttributeError("getCondition")

    def getErrorClass(self):
        return self.condition

    def getMessageParameters(self):
        return {"path": "file:/data/tidemark-no-such-file"}

    def __init__(self, condition):
        self.condition = condition


class Reading:
    """A session in which reading a text raises an error."""

    def __init__(self, error):
        self._error = error
        self.read = self

    def text(self, _path):
        raise self._error


def test_an_older_spark_is_understood_too():
    assert is_absence(OfSpark3("PATH_NOT_FOUND"))
    assert not is_absence(OfSpark3("UNRESOLVED_COLUMN"))
    assert not is_absence(ValueError("PATH_NOT_FOUND"))
    assert places.qualified(Reading(OfSpark3("PATH_NOT_FOUND")), "/data") == "file:/data"


TRACEBACK = """[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: An exception was raised by the Python Proxy. \
Return Message: Traceback (most recent call last):
  File "/app/spark_jobs/telemetry_aggregation/incremental.py", line 1, in step
{}
 SQLSTATE: XXKST

JVM stacktrace:
org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Query terminated
\tat org.apache.spark.sql.execution.streaming.StreamExecution.runStream
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy.
"""


class Query:
    name = "metrics"
    stopped = False

    def __init__(self, raised):
        self._raised = raised

    def awaitTermination(self):
        raise StreamingQueryException(TRACEBACK.format(self._raised))

    def stop(self):
        self.stopped = True


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            "tidemark.analysis.errors.JobError: state lacks the mark of batch 4; begin with a new --checkpoint",
            "the stream of metrics failed: JobError: state lacks the mark of batch 4; begin with a new --checkpoint",
        ),
        (
            "OSError: [Errno 28] No space left",
            "the stream of metrics failed, the next run goes on from its checkpoint: OSError: [Errno 28] No space left",
        ),
    ],
)
def test_a_stream_that_fails_tells_why_in_one_line(raised, told):
    query = Query(raised)

    with pytest.raises(JobError) as failed:
        job._finish([query])

    assert str(failed.value) == told
    assert query.stopped


@pytest.mark.parametrize(
    "text",
    [
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/in/b.parquet.",
        "[CANNOT_READ_FILE_FOOTER] Could not read footer for file file:/in/b.parquet. Please",
    ],
)
def test_a_file_that_spark_cannot_read_is_one_line(text):
    input_error = input_error_of(PySparkException(f"Job aborted: \n{text}\n\tat org.apache.spark.Foo"))

    assert isinstance(input_error, InputError)
    assert str(input_error).startswith("a file cannot be read: ")
    assert "b.parquet" in str(input_error)
    assert "\n" not in str(input_error)


def test_without_a_reason_the_first_line_is_told():
    assert (
        reason_of(StreamingQueryException("\n  [STREAM_FAILED] it ended\nmore")) == "[STREAM_FAILED] it ended"
    )
