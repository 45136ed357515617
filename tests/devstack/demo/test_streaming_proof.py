"""The demo's proof finds every way in which a record can go wrong."""

from types import SimpleNamespace

import msgspec
import pytest
from msgspec import structs

from devstack.demo.common.flights import flights
from devstack.demo.streaming.proof import Account, Proof, account, judge
from devstack.demo.streaming.report import failures_of

POISON = b"flight 7: no position received"


@pytest.fixture
def world():
    sent = list(flights(3))
    records = {("0", number): msgspec.json.encode(flight) for number, flight in enumerate(sent)}
    return SimpleNamespace(
        records={**records, ("1", 0): POISON},
        documents=[dict(flight) for flight in sent],
        letters={("1", 0): {"body": POISON.decode()}},
        writes=3,
    )


def proof_of(world):
    return judge(world.records, world.documents, world.letters, world.writes)


def test_records_that_are_all_documents_or_dead_letters_are_proof(world):
    proof = proof_of(world)

    assert proof.holds
    assert (proof.records, proof.documents, proof.letters) == (4, 3, 1)
    assert (proof.lost, proof.duplicates, proof.replayed) == (0, 0, 0)


def test_writes_beyond_the_documents_are_replays_and_no_problem(world):
    world.writes = 5

    proof = proof_of(world)

    assert proof.holds
    assert proof.replayed == 2


def test_a_flight_that_is_nowhere_is_lost(world):
    del world.documents[1]

    proof = proof_of(world)

    assert proof.problems == ("1 flight is not in the container: flight-1",)
    assert proof.lost == 1


def test_a_record_that_is_no_flight_and_no_dead_letter_is_lost(world):
    world.letters.clear()

    proof = proof_of(world)

    assert proof.lost == 1
    assert "1 poison record is not among the dead letters: ('1', 0)" in proof.problems


def test_two_documents_of_one_flight_are_a_duplicate(world):
    world.documents.append(dict(world.documents[0]))

    proof = proof_of(world)

    assert proof.duplicates == 1
    assert proof.problems == ("1 document is under an id that another one has: flight-0",)


def test_several_lost_flights_are_counted_in_the_plural(world):
    del world.documents[1:]

    assert proof_of(world).problems == ("2 flights are not in the container: flight-1, flight-2",)


def test_a_document_that_is_not_what_was_sent_is_told(world):
    world.documents[2]["distance"] = 1

    assert proof_of(world).problems == ("1 document is not what was sent: flight-2",)


def test_a_dead_letter_that_is_not_what_was_sent_is_told(world):
    world.letters["1", 0]["body"] = "something else"

    assert proof_of(world).problems == ("1 dead letter is not what was sent: ('1', 0)",)


def test_a_dead_letter_of_a_flight_is_told(world):
    world.letters["0", 1] = {"body": "{}"}

    assert proof_of(world).problems == ("1 dead letter is of no poison record: ('0', 1)",)


def test_a_document_that_nobody_sent_is_told(world):
    world.documents.append({"id": "flight-x"})

    assert proof_of(world).problems == ("1 document is of no flight that was sent: flight-x",)


TOLD = Account(written=4, instances=2, without_end=1)
RAISED = ((15.0, 400, 8400, "throttled"),)


def run(**changes):
    consumer = {
        name: SimpleNamespace(name=name, state="stopped", status=0) for name in ("consumer 1", "consumer 2")
    }
    values = {
        "records": 4,
        "samples": [SimpleNamespace(throttled=9)],
        "killed_at": 20.0,
        "instances": list(consumer.values()),
    }
    return SimpleNamespace(**{**values, **changes})


def test_a_demo_in_which_everything_happened_passes(world):
    assert failures_of(run(), proof_of(world), RAISED, TOLD) == ()


def test_a_demo_whose_consumers_told_nothing_fails(world):
    nothing = Account(written=0, instances=0, without_end=0)

    assert failures_of(run(), proof_of(world), RAISED, nothing) == (
        "the consumers' telemetry shows no write",
    )


@pytest.mark.parametrize(
    ("changes", "raised", "failure"),
    [
        ({"records": 5}, RAISED, "4 of 5 records reached the hub"),
        ({"samples": [SimpleNamespace(throttled=0)]}, RAISED, "nothing was throttled"),
        ({}, ((15.0, 8400, 400, "idle"),), "the throughput was never raised"),
        ({"killed_at": None}, RAISED, "no consumer was killed"),
        (
            {"instances": [SimpleNamespace(name="consumer 2", state="stopped", status=6)]},
            RAISED,
            "consumer 2 ended with status 6",
        ),
    ],
)
def test_a_demo_in_which_something_did_not_happen_fails(world, changes, raised, failure):
    assert failures_of(run(**changes), proof_of(world), raised, TOLD) == (failure,)


def test_a_lost_record_fails_the_demo(world):
    del world.documents[0]

    assert failures_of(run(), proof_of(world), RAISED, TOLD) == (
        "1 flight is not in the container: flight-0",
    )


def interval(instance, written, *, stopping=False):
    return {"kind": "interval", "instance": instance, "written": written, "stopping": stopping}


def land(folder, name, *records):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def test_the_writes_that_consumers_reported_are_compared_with_those_of_the_container(tmp_path):
    land(tmp_path / "hour=01", "a-1.jsonl", interval("a", 100), {"kind": "checkpoint", "instance": "a"})
    land(tmp_path / "hour=02", "a-2.jsonl", interval("a", 50, stopping=True))
    land(tmp_path / "hour=01", "b-1.jsonl", interval("b", 30))
    land(tmp_path / "hour=01", ".b-2.jsonl.tmp", interval("b", 1_000))
    found = account(tmp_path)
    proof = Proof(records=190, distinct=190, documents=190, letters=0, writes=190)

    assert found == Account(written=180, instances=2, without_end=1)
    assert "have 180 of 190 writes; 1 of 2 consumers left no final report" in found.beside(proof)
    assert found.beside(structs.replace(proof, writes=180)).endswith("have 180 of 180 writes")
