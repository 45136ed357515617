"""Which worker runs which files of tests: each test once, and those that need a Spark session by one worker."""

from types import SimpleNamespace

import pytest

from tests.conftest import FilesAndOneSpark, shares_session

SPARK = ["tests/spark/test_cost.py", "tests/spark/test_lake.py", "tests/spark/test_results.py"]
OTHERS = [f"tests/unit/test_{number}.py" for number in range(4)]
TESTS = [f"{file}::test_{number}" for file in (*SPARK, *OTHERS) for number in range(4)]


class Worker:
    """It runs what it is sent, in order, and keeps its last test until it is told to end, as xdist's do."""

    def __init__(self):
        self.gateway = SimpleNamespace(id="gw")
        self.sent, self.ran, self.shutting_down = [], [], False

    def send_runtest_some(self, indices):
        self.sent += indices

    def shutdown(self):
        self.shutting_down = True

    def run_next(self, scheduler):
        if len(self.sent) > (0 if self.shutting_down else 1):
            index = self.sent.pop(0)
            self.ran.append(TESTS[index])
            scheduler.mark_test_complete(self, index)


def scheduler_of(workers, tests=TESTS):
    config = SimpleNamespace(
        getvalue=lambda name: ["popen"] * len(workers), option=SimpleNamespace(loadscopereorder=False)
    )
    log = SimpleNamespace(loadscopesched=lambda *_: None, loadfilesched=lambda *_: None)
    scheduler = FilesAndOneSpark(config, log)
    for worker in workers:
        join(scheduler, worker, tests)
    scheduler.schedule()
    return scheduler


def join(scheduler, worker, tests=TESTS):
    scheduler.add_node(worker)
    scheduler.add_node_collection(worker, tests)


def run_all(scheduler, workers):
    for _ in range(2 * len(TESTS)):
        for worker in workers:
            worker.run_next(scheduler)


def spark_of(worker):
    return [test for test in worker.ran if test.startswith("tests/spark/")]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_each_test_runs_once_and_one_worker_has_the_session(count):
    workers = [Worker() for _ in range(count)]
    assert all(map(shares_session, SPARK))

    run_all(scheduler_of(workers), workers)

    assert sorted(test for worker in workers for test in worker.ran) == sorted(TESTS)
    assert all(worker.shutting_down for worker in workers)
    assert len([worker for worker in workers if spark_of(worker)]) == 1


def test_another_worker_takes_the_session_of_one_that_crashed():
    first, second = workers = [Worker(), Worker()]
    scheduler = scheduler_of(workers)
    for _ in range(5):
        first.run_next(scheduler)
    crashed = scheduler.remove_node(first)

    third = Worker()
    join(scheduler, third)
    scheduler.schedule()
    run_all(scheduler, [second, third])

    assert crashed == f"{SPARK[1]}::test_1"
    again = [*second.ran, *third.ran]
    assert sorted({*first.ran, *again}) == sorted(TESTS)
    assert len(again) == len({*again})
