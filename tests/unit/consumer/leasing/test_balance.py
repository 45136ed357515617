"""One plan at a time: what an instance claims, keeps and gives up."""

from consumer.leasing.balance import Plan, plan, presence_of
from consumer.model import Lease

EXPIRY = 30.0
NOW = 1000.0


def held(partition, owner, age=0.0):
    return Lease(str(partition), owner, NOW - age, f"token {partition}")


def present(*owners, age=0.0):
    return [Lease(presence_of(owner), owner, NOW - age, "p") for owner in owners]


def names(leases):
    return [lease.partition for lease in leases]


def parts(count):
    return [str(number) for number in range(count)]


def test_the_first_instance_claims_everything_at_once():
    made = plan([], present("a"), parts(12), "a", NOW, EXPIRY)

    assert names(made.claim) == parts(12)
    assert made.claim[0] == Lease("0", "", 0.0, "")
    assert made.missing == 0


def test_leases_expire_by_the_store_s_time_alone_and_are_claimed_as_they_are():
    fresh, expired = held(0, "dead", age=30.0), held(1, "dead", age=30.1)

    made = plan([fresh, expired], present("a"), parts(2), "a", NOW, EXPIRY)

    assert made.claim == (expired,)


def test_a_released_lease_is_free_however_fresh():
    released = Lease("0", "", NOW, "t")

    assert plan([released], [], parts(1), "a", NOW, EXPIRY).claim == (released,)


def test_an_owner_above_its_share_gives_up_the_excess_and_nobody_steals_it():
    leases = [held(number, "a") for number in range(4)]

    of_a = plan(leases, present("a", "b"), parts(4), "a", NOW, EXPIRY)
    of_b = plan(leases, present("a", "b"), parts(4), "b", NOW, EXPIRY)

    assert (names(of_a.renew), names(of_a.release)) == (["0", "1"], ["2", "3"])
    assert (of_b.claim, of_b.missing) == ((), 2)


def test_what_is_draining_goes_first():
    leases = [held(number, "a") for number in range(4)]

    made = plan(leases, present("a", "b"), parts(4), "a", NOW, EXPIRY, draining={"0"})

    assert set(names(made.release)) == {"0", "3"}


def test_the_undivided_rest_stays_where_it_is():
    leases = [held(number, "b") for number in range(2)] + [held(2, "a")]

    assert plan(leases, present("a", "b"), parts(3), "b", NOW, EXPIRY).release == ()
    assert plan(leases, present("a", "b"), parts(3), "a", NOW, EXPIRY) == Plan(renew=(leases[2],))


def test_a_dead_presence_takes_no_share_and_is_forgotten_much_later():
    dead, long_dead = present("b", age=31.0), present("c", age=301.0)
    leases = [held(number, "a") for number in range(2)]

    made = plan(leases, [*present("a"), *dead, *long_dead], parts(2), "a", NOW, EXPIRY)

    assert made.release == ()
    assert made.forget == tuple(long_dead)


def test_our_own_old_lease_is_still_ours_while_nobody_took_it():
    old = held(0, "a", age=500.0)

    assert plan([old], present("a"), parts(1), "a", NOW, EXPIRY).renew == (old,)


def test_a_partition_that_is_gone_is_given_up_and_a_new_one_claimed():
    made = plan([held(7, "a")], present("a"), parts(2), "a", NOW, EXPIRY)

    assert names(made.release) == ["7"]
    assert names(made.claim) == ["0", "1"]


def test_the_excess_of_a_foreign_owner_is_taken_after_two_expiry_times():
    leases = [held(number, "foreign") for number in range(4)]

    first = plan(leases, present("a"), parts(4), "a", NOW, EXPIRY)
    waited = plan(
        leases, present("a"), parts(4), "a", NOW + 1, EXPIRY, excess_since={"foreign": NOW + 1 - 60.0}
    )

    assert (first.claim, first.missing, first.excess_since) == ((), 2, {"foreign": NOW})
    assert names(waited.claim) == ["2", "3"]


def test_a_foreign_owner_within_its_share_is_left_alone_for_ever():
    leases = [held(number, "foreign") for number in range(2)] + [held(number, "a") for number in range(2, 4)]

    made = plan(leases, present("a"), parts(4), "a", NOW, EXPIRY, excess_since={"foreign": 0.0})

    assert (made.claim, made.excess_since) == ((), {})


def test_an_instance_without_a_share_waits_for_nothing():
    leases = [held(0, "a"), held(1, "b")]

    assert plan(leases, present("a", "b", "c"), parts(2), "c", NOW, EXPIRY) == Plan()
