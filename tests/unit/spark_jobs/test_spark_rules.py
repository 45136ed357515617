"""What modules on Spark never do, kept by the code itself."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
COLLECTING = {"collect", "first", "head", "tail", "toPandas", "toLocalIterator", "toArrow"}
CLASSIC = {"sparkContext", "_jvm", "_jsc", "_gateway", "rdd", "_jdf", "_jsparkSession", "toJavaRDD"}


@cache
def nodes():
    """Dotted name -> all that is in a module. Asked for by tests only: every worker collects this file."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): [
            *ast.walk(ast.parse(path.read_text("utf-8")))
        ]
        for path in sorted((ROOT / "spark_jobs").rglob("*.py"))
    }


def imports_pyspark(node):
    return (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pyspark") or (
        isinstance(node, ast.Import) and any(name.name.startswith("pyspark") for name in node.names)
    )


def is_classic(node):
    return (
        (isinstance(node, ast.Attribute) and node.attr in CLASSIC)
        or (isinstance(node, ast.Name) and node.id == "SparkContext")
        or (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "py4j")
    )


def collects(node):
    """A call that brings rows to the driver; `take` does with one argument, a quarantine's has more."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and not (isinstance(node.func.value, ast.Name) and node.func.value.id == "F")  # F.first aggregates
        and (node.func.attr in COLLECTING or (node.func.attr == "take" and len(node.args) == 1))
    )


def compares_a_struct(node):
    return isinstance(node, ast.Compare) and any(
        isinstance(side, ast.Call) and ast.unparse(side.func) == "F.struct"
        for side in (node.left, *node.comparators)
    )


def makes_an_arrow_schema(node):
    return isinstance(node, ast.ImportFrom) and any(each.name == "arrow_schema" for each in node.names)


@cache
def on_spark():
    return {name for name, found in nodes().items() if any(map(imports_pyspark, found))}


def lines_that(breaks_the_rule, among, *, but=""):
    """Module and line."""
    return [
        (name, node.lineno)
        for name in among
        if name != but
        for node in nodes()[name]
        if breaks_the_rule(node)
    ]


def test_only_guarded_modules_touch_what_spark_connect_does_not_have():
    """`classic` answers where there is none."""
    assert lines_that(is_classic, nodes(), but="spark_jobs.platform.classic") == []


def test_there_are_modules_to_look_at():
    assert on_spark() > {
        *("spark_jobs.platform.rows", "spark_jobs.backtest.job", "spark_jobs.reconciliation.job"),
        "spark_jobs.telemetry_aggregation.job",
    }


def test_only_one_module_collects_rows_since_others_would_get_local_times_for_utc():
    assert lines_that(collects, on_spark(), but="spark_jobs.platform.rows") == []


def test_no_struct_is_compared_since_spark_3_5_refuses_those_of_other_field_names():
    assert lines_that(compares_a_struct, on_spark()) == []


def test_the_job_that_runs_on_spark_3_5_makes_no_arrow_schema_with_a_zone_which_that_cannot():
    """As `make torture` finds with pyspark 3.5 itself."""
    job = [name for name in on_spark() if ".telemetry_aggregation." in name]

    assert lines_that(makes_an_arrow_schema, job) == []
