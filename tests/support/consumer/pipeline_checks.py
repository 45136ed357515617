"""What always holds of a pipeline, checked by walking all that it holds: AssertionError with its story if anything does not."""

import math


def check_pipeline(pipeline):
    backlog, story = pipeline._backlog, f"{pipeline.statistics(0.0)}"
    inside = {
        id(work): work
        for work in (
            *works_of(pipeline._lanes),
            *_rejected(pipeline._burial._letters),
            *_rejected(pipeline._burial._parking),
        )
    }.values()
    siblings = {id(work.siblings): work.siblings for work in inside if work.siblings}.values()
    alone = [work for work in inside if not work.siblings]
    events = len(alone) + len(siblings)
    assert events == backlog.count, f"{events} events inside, {backlog.count} counted: {story}"
    held = sum(work.record.size for work in alone) + sum(each.held for each in siblings)
    held += sum(len(work.record.payload) for work in inside if work.siblings)
    assert held == backlog.bytes, f"bytes are off: {story}"
    for each in siblings:
        open_ = sum(work.siblings is each for work in inside)
        assert each.open == open_, f"{each.open} records open, {open_} works of them inside: {story}"
    for partition in backlog.partitions.values():
        work_list = partition.work_list
        check_work_list(work_list)
        own = {work.record.event.sequence_number for work in inside if work.work_list is work_list}
        lowest = min(own, default=math.inf)
        assert work_list.mark[0] < lowest, f"the mark passed unsettled event {lowest}: {story}"
        if not partition.draining:
            assert len(own) == work_list.unsettled, (
                f"{len(own)} events, {work_list.unsettled} unsettled: {story}"
            )


def check_work_list(work_list):
    numbers = [entry[0] for entry in work_list._queue]
    unsettled, settled = work_list._unsettled, work_list._settled
    rules = {
        "events beyond the mark ascend": numbers == sorted(set(numbers)),
        "each of them is settled or unsettled": set(numbers) == unsettled | settled,
        "none of them is both": not unsettled & settled,
        "the first of them is unsettled": not numbers or numbers[0] in unsettled,
        "all are above the mark": not numbers or numbers[0] > work_list.mark[0],
        "none is above the highest received": work_list.received >= max([*numbers, work_list.mark[0]]),
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    assert not broken, f"partition {work_list.partition}: not true that {'; '.join(broken)}"


def works_of(lanes):
    """Every work inside, and those it stands for, in no order."""
    works = [item[-1] for lane in lanes._lanes.values() for item in (*lane._queue, *lane._retries)]
    works += [work for _, batch in lanes._batches.values() for work in batch]
    works += [work for waiting in lanes._keys.values() for work in waiting or ()]
    return [each for work in (*works, *lanes._stranded) for each in (work, *work.superseded)]


def _rejected(queue):
    return [work for work, _ in (*queue._waiting, *(queue._storing[1] if queue._storing else ()))]
