"""The session a job gets."""

import pytest

from spark_jobs.platform.session import SETTINGS, is_managed
from spark_jobs.sources.registration import spark_session
from tidemark.analysis.errors import InputError


def test_an_active_session_is_used_as_it_is_but_for_what_the_jobs_need(spark) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")

    session = spark_session("other", cores=1, memory="9g")

    assert session is spark
    assert spark.sparkContext.master == "local[2]"
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS
    assert spark.sql("select current_timezone()").first()[0] == "UTC"


def test_no_cores_are_an_error(spark) -> None:
    with pytest.raises(InputError, match="--cores is 0; accepted: 1 or more"):
        spark_session("other", cores=0)


@pytest.mark.parametrize(
    ("environment", "managed"),
    [
        ({}, False),
        ({"JAVA_HOME": "/java"}, False),
        ({"PYSPARK_GATEWAY_PORT": "4000"}, True),
        ({"SPARK_REMOTE": "sc://somewhere"}, True),
        ({"DATABRICKS_RUNTIME_VERSION": "17.3"}, True),
    ],
)
def test_the_master_is_ours_only_where_nobody_else_chose_it(environment, managed) -> None:
    assert is_managed(environment) == managed
