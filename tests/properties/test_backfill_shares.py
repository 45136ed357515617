"""Shares of one budget, with answers late or lost and holders that vanish."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jobs.backfill.budget.shares import Shares, SupersededError

LEASE, WINDOW = 3.0, 1.0


class Holder:
    """Uses a share from its arrival until the next one arrives or its lease, counted from the asking, ends."""

    def __init__(self, task, attempt):
        self.task, self.attempt = task, attempt
        self.holds = 0
        self.used = []  # (from, to, amount)

    def receive(self, share, asked, now):
        if share.amount and now < asked + LEASE:
            self.stop(now)
            self.holds = share.number
            self.used.append([now, asked + LEASE, share.amount])

    def stop(self, now):
        if self.used:
            self.used[-1][1] = min(self.used[-1][1], now)

    def most(self, start, end):
        return max((amount for begin, stop, amount in self.used if begin < end and stop > start), default=0.0)


steps = st.lists(
    st.tuples(
        st.integers(0, 2),  # task
        st.sampled_from([0, 0, 0, 1]),  # a later attempt of it
        st.sampled_from(["answered", "answered", "late", "lost", "over"]),
        st.sampled_from([0.0, 0.1, 0.4, 1.1, 3.5]),  # seconds that pass before
    ),
    min_size=1,
    max_size=40,
)


@given(steps, st.sampled_from([1, 2, 3, 100, 1000]), st.booleans())
@example(  # a lower share that never arrived: the higher one goes on
    [(0, 0, "answered", 0.0), (1, 0, "answered", 0.0), (0, 0, "lost", 0.0), (1, 0, "answered", 1.1)],
    100,
    False,
)
@settings(max_examples=200)
def test_what_all_holders_may_use_within_any_second_is_never_more_than_the_budget(story, budget, whole):
    shares = Shares(float(budget), whole=whole, lease=LEASE, window=WINDOW)
    holders, now = {}, 0.0
    for task, attempt, what, pause in story:
        now += pause
        holder = holders.setdefault((task, attempt), Holder(str(task), str(attempt)))
        if what == "over":
            holder.stop(now)
            shares.release(holder.task, holder.attempt, now=now)
            continue
        try:
            share = shares.renew(holder.task, holder.attempt, holds=holder.holds, now=now)
        except SupersededError:
            holder.stop(now)
            continue
        assert not whole or share.amount == int(share.amount)
        asked = now
        now += 0.3 if what == "late" else 0.0
        if what != "lost":
            holder.receive(share, asked, now)

        assert shares.held(now) <= budget * (1 + 1e-9)

    moments = {
        moment for holder in holders.values() for begin, end, _ in holder.used for moment in (begin, end)
    }
    for moment in moments:
        for start in (moment, moment - WINDOW):
            used = sum(holder.most(start, start + WINDOW) for holder in holders.values())
            assert used <= budget * (1 + 1e-9)


@given(steps)
@settings(max_examples=50)
def test_two_attempts_at_a_task_never_work_at_the_same_time(story):
    shares = Shares(100.0, lease=LEASE, window=WINDOW)
    holders, now = {}, 0.0
    for task, attempt, what, pause in story:
        now += pause
        holder = holders.setdefault((task, attempt), Holder(str(task), str(attempt)))
        try:
            share = shares.renew(holder.task, holder.attempt, holds=holder.holds, now=now)
        except SupersededError:
            holder.stop(now)
            continue
        if what != "lost":
            holder.receive(share, now, now)

    for task in {task for task, _ in holders}:
        first, second = (holders.get((task, attempt)) for attempt in (0, 1))
        if first and second:
            assert not any(
                a < d and c < b and a < b and c < d for a, b, _ in first.used for c, d, _ in second.used
            )


@given(st.integers(1, 6), st.sampled_from([6.0, 100.0]))
@settings(max_examples=30)
def test_those_who_keep_asking_share_the_whole_budget_evenly_after_a_few_seconds(count, budget):
    shares = Shares(budget, lease=LEASE, window=WINDOW)
    holds, amounts = dict.fromkeys(range(count), 0), {}
    for step in range(12):
        for task in range(count):
            share = shares.renew(str(task), "1", holds=holds[task], now=step * 0.5)
            holds[task] = share.number
            amounts[task] = share.amount

    assert [round(amount, 6) for amount in amounts.values()] == [round(budget / count, 6)] * count
