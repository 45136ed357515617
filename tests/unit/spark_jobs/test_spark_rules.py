"""What modules on Spark never do, kept by the code itself."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "spark_jobs").rglob("*.py"))
}
COLLECTING = {"collect", "first", "head", "tail", "toPandas", "toLocalIterator", "toArrow"}


def imports_pyspark(tree):
    return any(
        (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pyspark")
        or (isinstance(node, ast.Import) and any(name.name.startswith("pyspark") for name in node.names))
        for node in ast.walk(tree)
    )


ON_SPARK = sorted(name for name, tree in MODULES.items() if imports_pyspark(tree))


def collecting(tree):
    """Calls that bring rows to the driver; `take` does with one argument, a quarantine's has more."""
    return [
        f"line {node.lineno}: {node.func.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and not (isinstance(node.func.value, ast.Name) and node.func.value.id == "F")  # F.first aggregates
        and (node.func.attr in COLLECTING or (node.func.attr == "take" and len(node.args) == 1))
    ]


CLASSIC = {"sparkContext", "_jvm", "_jsc", "_gateway", "rdd", "_jdf", "_jsparkSession", "toJavaRDD"}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_guarded_modules_touch_what_spark_connect_does_not_have(name):
    """`classic` answers where there is none."""
    if name != "spark_jobs.platform.classic":
        touched = {node.attr for node in ast.walk(MODULES[name]) if isinstance(node, ast.Attribute)}
        named = {node.id for node in ast.walk(MODULES[name]) if isinstance(node, ast.Name)}
        imported = {
            node.module.partition(".")[0]
            for node in ast.walk(MODULES[name])
            if isinstance(node, ast.ImportFrom) and node.module
        }
        assert not touched & CLASSIC
        assert "SparkContext" not in named
        assert "py4j" not in imported


def test_there_are_modules_to_look_at():
    assert {"spark_jobs.platform.rows", "spark_jobs.backtest.job", "spark_jobs.reconciliation.job"} <= set(
        ON_SPARK
    )


@pytest.mark.parametrize("name", ON_SPARK)
def test_only_one_module_collects_rows_since_others_would_get_local_times_for_utc(name):
    if name != "spark_jobs.platform.rows":
        assert collecting(MODULES[name]) == []


@pytest.mark.parametrize("name", ON_SPARK)
def test_no_struct_is_compared_since_spark_3_5_refuses_those_of_other_field_names(name):
    compared = [
        node.lineno
        for node in ast.walk(MODULES[name])
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Call) and ast.unparse(side.func) == "F.struct"
    ]
    assert compared == []


@pytest.mark.parametrize("name", [name for name in ON_SPARK if ".telemetry_aggregation." in name])
def test_the_job_that_runs_on_spark_3_5_makes_no_arrow_schema_with_a_zone_which_that_cannot(name):
    """As `make torture` finds with pyspark 3.5 itself."""
    imported = {
        each.name
        for node in ast.walk(MODULES[name])
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    assert "arrow_schema" not in imported
