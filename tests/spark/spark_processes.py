"""Spark's own processes on this machine: master, workers, spark-submit, a server of Spark Connect.

None outlives the test, also when that is killed: what is started here dies with it, and executors with their worker.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from devstack.demo.spark.child import SMALL_DATA
from devstack.processes.child import ChildProcess
from spark_jobs.java import ensure_java

ROOT = Path(__file__).parents[2]
READY_WITHIN = 180.0  # seconds; 5 on an idle machine
LIGHT = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Of each Java: a test starts up to seven, and what they do there is mostly compiling what they run once."""
SETTINGS = {
    **SMALL_DATA,
    "spark.driver.defaultJavaOptions": LIGHT,
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def spark_home(folder: Path) -> Path:
    """The installed Spark in a new folder, below which its processes write."""
    home = folder / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


def environment(home: Path) -> dict[str, str]:
    return {
        "JAVA_HOME": str(ensure_java()),
        "JAVA_TOOL_OPTIONS": LIGHT,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",  # as Spark's scripts set it; a worker without it starts no executor
    }


def submitting(home: Path, *arguments: str | Path) -> ChildProcess:
    """spark-submit with SETTINGS and these arguments, not started."""
    settings = (option for name, value in SETTINGS.items() for option in ("--conf", f"{name}={value}"))
    argv = [home / "bin" / "spark-submit", *settings, *arguments]
    return ChildProcess("spark-submit", argv, cwd=home.parent, env=environment(home))


def ended(child: ChildProcess, *, within: float) -> tuple[int | None, str]:
    """Runs it to its end: its exit status, and the end of what it wrote. Raises ProcessError after `within` seconds."""
    try:
        child.start()
        child.wait_until_ready(lambda: not child.running, timeout_s=within)
        told = child.output_tail(100)
        return child.stop(), told
    finally:
        child.stop()


def ready(child: ChildProcess, pattern: str) -> str:
    """What it wrote that fits the pattern's group, as soon as it did. Raises ProcessError where it does not."""
    child.wait_until_ready(
        lambda: re.search(pattern, child.output_tail(200)) is not None, timeout_s=READY_WITHIN
    )
    found = re.search(pattern, child.output_tail(200))
    assert found is not None
    return found[1]


@contextmanager
def cluster(home: Path, workers: int) -> Iterator[str]:
    """Spark's own cluster, a master and workers with a core each; gives the master's URL."""
    with ExitStack() as running:

        def start(kind: str, *arguments: str) -> ChildProcess:
            java = Path(environment(home)["JAVA_HOME"], "bin", "java")
            # spark-class would start another Java, to find out how this one is to be started.
            argv = [java, "-Xmx256m", "-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{kind}"]
            at = ("--host", "127.0.0.1", "--webui-port", "0")
            child = ChildProcess(kind, [*argv, *at, *arguments], cwd=home.parent, env=environment(home))
            running.callback(child.stop)
            child.start()
            return child

        master = ready(start("master.Master", "--port", "0"), r"Starting Spark master at (spark://\S+)")
        size = ("--cores", "1", "--memory", "1g")
        places = [("--work-dir", str(home / f"work-{number}")) for number in range(workers)]
        for worker in [start("worker.Worker", *place, *size, master) for place in places]:
            ready(worker, r"Successfully registered with (master)")
        yield master


@contextmanager
def connect_server(home: Path) -> Iterator[str]:
    """A server of Spark Connect in local mode; gives its URL."""
    server = submitting(
        home,
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"),
        *("--driver-memory", "1g", "--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", "spark.connect.grpc.binding.port=0", "spark-internal"),
    )
    try:
        server.start()
        # A client that comes too early waits longer and longer between its attempts, up to a minute.
        port = ready(server, r"Spark Connect server started at: \S+:(\d+)")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.stop()
