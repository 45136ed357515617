import pytest

from devstack.cosmos import CosmosError, CosmosServer
from devstack.cosmos.partitions.budget import Budget, Prices
from tests.support.virtual_time import Clock


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def server(clock):
    made = CosmosServer(clock=clock, split_delay=5)
    made.create_container("d", "c", "/pk", throughput=400)
    return made


def test_a_budget_admits_while_anything_is_left_and_lets_later_seconds_pay_the_debt():
    budget = Budget()
    admitted = 0
    for tick in range(100 * 10):
        now = 1000 + tick / 100
        if budget.wait(50, now) == 0:
            budget.spend(30)
            admitted += 1

    assert admitted == pytest.approx(10 * 50 / 30, abs=1)


def test_the_wait_that_a_budget_names_is_exactly_long_enough():
    budget = Budget()
    budget.wait(10, 1000.25)
    budget.spend(35)

    wait = budget.wait(10, 1000.25)
    assert wait == 2.75
    assert budget.wait(10, 1000.25 + wait - 0.001) > 0
    assert budget.wait(10, 1000.25 + wait) == 0


def test_nothing_is_saved_up_over_idle_seconds():
    budget = Budget()
    budget.wait(10, 1000)

    assert budget.wait(10, 1100) == 0
    budget.spend(11)
    assert budget.wait(10, 1100.5) == 0.5


def test_a_write_costs_by_size_but_one_kib_at_least():
    prices = Prices()

    assert (prices.write(1), prices.write(1024), prices.write(3 * 1024)) == (5, 5, 15)


@pytest.mark.parametrize("amount", [300, 450, 1_000_100])
def test_an_amount_below_the_floor_off_the_steps_or_above_the_maximum_is_refused(server, amount):
    with pytest.raises(CosmosError, match="increments of 100"):
        server.replace_throughput("d", "c", throughput=amount)

    assert server.offer("d", "c").level.ru == 400


def test_what_the_partitions_carry_takes_effect_at_once_and_raises_the_floor_for_good(server):
    server.replace_throughput("d", "c", throughput=10_000)
    server.create_container("d", "big", "/pk", throughput=100_000)

    assert server.offer("d", "c").level.ru == 10_000
    assert server.offer("d", "c").minimum() == 400
    assert server.offer("d", "big").minimum() == 1000


def test_more_than_the_partitions_carry_takes_effect_after_they_were_split(server, clock):
    offer = server.replace_throughput("d", "c", throughput=24_000)

    assert (offer.level.ru, offer.pending is not None) == (400, True)
    with pytest.raises(CosmosError) as caught:
        server.replace_throughput("d", "c", throughput=500)
    assert caught.value.status == 423
    clock.now += 5
    assert server.offer("d", "c").level.ru == 24_000
    assert len(server.container("d", "c").map) == 3
    assert offer.pending is None


def test_down_is_instant_but_partitions_stay_so_that_each_gets_less(server):
    server.create_container("d", "wide", "/pk", throughput=20_000)
    offer = server.replace_throughput("d", "wide", throughput=1000)

    assert offer.per_range == 500


def test_autoscale_goes_by_thousands_and_manual_becomes_autoscale_by_migration_alone(server):
    with pytest.raises(CosmosError, match="migration"):
        server.replace_throughput("d", "c", autoscale=4000)
    offer = server.offer("d", "c")
    server.account.migrate_offer(offer, autoscale=True)

    assert (offer.level.ru, offer.level.autoscale) == (1000, True)
    with pytest.raises(CosmosError, match="increments of 1000"):
        server.replace_throughput("d", "c", autoscale=1500)


def test_the_26th_update_within_five_minutes_is_refused(server, clock):
    for step in range(25):
        server.replace_throughput("d", "c", throughput=500 + 100 * (step % 2))
    with pytest.raises(CosmosError) as caught:
        server.replace_throughput("d", "c", throughput=900)

    assert (caught.value.status, caught.value.retry_after) == (429, 300)
    clock.now += 300
    assert server.replace_throughput("d", "c", throughput=900).level.ru == 900


def test_containers_of_a_shared_database_spend_one_budget_and_have_no_offer_of_their_own(server):
    server.create_database("shared", throughput=400)
    one = server.create_container("shared", "one", "/pk")
    two = server.create_container("shared", "two", "/pk")
    one.admit(one.map.ranges[0], 1000.0)
    one.shared_budget.spend(401)

    with pytest.raises(CosmosError) as caught:
        two.admit(two.map.ranges[0], 1000.0)
    assert caught.value.status == 429
    assert {offer.owner.rid for offer in server.account.offers()} == {
        server.account.database("shared").rid_text,
        server.container("d", "c").rid_text,
    }
    assert one.shares


def test_every_container_beyond_the_25th_raises_the_floor_of_a_shared_database(server):
    server.create_database("shared", throughput=1000)
    for number in range(27):
        server.create_container("shared", f"c{number}", "/pk")

    assert server.offer("shared").minimum() == 600
