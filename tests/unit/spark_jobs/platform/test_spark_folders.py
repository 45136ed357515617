"""Folders that Spark could write and never read again."""

import pytest

from spark_jobs.tables.results import Results
from spark_jobs.telemetry_aggregation import job
from spark_jobs.telemetry_aggregation.inputs import Inputs
from tidemark.analysis.errors import InputError


@pytest.mark.parametrize("folder", ["out[1]", "abfss://c@a/{today}", "out/*", "out/?", "C:\\out"])
def test_a_folder_whose_name_is_a_pattern_is_refused_before_anything_is_read(folder):
    with pytest.raises(InputError, match=r"--output is '.*', in which .* would be a pattern"):
        Results.begin(None, folder, job="a job", fmt="parquet")


def test_a_checkpoint_whose_name_is_a_pattern_is_refused(tmp_path):
    settings = job.Settings(inputs=Inputs(metrics="in"), output="out", checkpoint="state[2]")

    with pytest.raises(InputError, match=r"--checkpoint is 'state\[2\]'"):
        job.run(None, settings)
