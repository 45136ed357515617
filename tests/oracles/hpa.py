"""The HPA v2 algorithm, written down naively from its description, for comparison.

    Value:        ratio = m/target; |1-ratio| <= tolerance -> keep; else ceil(ratio*ready); from 0: ceil(ratio)
    AverageValue: ratio = m/(target*current); |1-ratio| <= tolerance -> keep; else ceil(m/target)
    a change that reverses direction (because of units that are not ready) is dropped
    behaviour:    1 stabilise (out: MIN of the recommendations in the window; in: MAX)
                  2 rate limit; 3 clamp to minimum and maximum
    a count outside its bounds goes to the bound first

Nothing here is shared with the code under test; rates are (kind, amount, period) triples, recommendations
(time, count) pairs, changes (time, from, to) triples.
"""

import math


def recommendation(metric, target, current, ready, tolerance, mode):
    if mode == "value":
        ratio = metric / target
        if current == 0:
            return math.ceil(ratio)
        if abs(1.0 - ratio) <= tolerance:
            return current
        wanted = math.ceil(ratio * ready)
        if ratio > 1.0 and wanted < current:
            return current
        if ratio < 1.0 and wanted > current:
            return current
        return wanted
    if current > 0:
        ratio = metric / (target * current)
        if abs(1.0 - ratio) <= tolerance:
            return current
    return math.ceil(metric / target)


def stabilise(wanted, current, history, out_window, in_window, now):
    lowest = wanted
    highest = wanted
    for when, count in history:
        if when > now - out_window:
            lowest = min(lowest, count)
        if when > now - in_window:
            highest = max(highest, count)
    answer = current
    if answer < lowest:
        answer = lowest
    if answer > highest:
        answer = highest
    return answer


def scale_out_limit(current, changes, rates, select, now):
    if select == "disabled":
        return current
    limits = []
    for kind, amount, period in rates:
        added = sum(
            after - before for when, before, after in changes if after > before and when > now - period
        )
        start = current - added
        limits.append(start + amount if kind == "units" else math.ceil(start * (1 + amount / 100)))
    if not limits:
        return math.inf
    return max(limits) if select == "max" else min(limits)


def scale_in_limit(current, changes, rates, select, now):
    if select == "disabled":
        return current
    limits = []
    for kind, amount, period in rates:
        removed = sum(
            before - after for when, before, after in changes if after < before and when > now - period
        )
        start = current + removed
        limits.append(start - amount if kind == "units" else int(start * (1 - amount / 100)))
    if not limits:
        return -math.inf
    return min(limits) if select == "max" else max(limits)


def next_count(case):
    """The count the HPA would set: `case` is a mapping with everything it knows."""
    current, low, high, now = case["current"], case["minimum"], case["maximum"], case["now"]
    wanted = recommendation(
        case["metric"], case["target"], current, case["ready"], case["tolerance"], case["mode"]
    )
    if current > high:
        return high
    if current < low:
        return low
    answer = stabilise(wanted, current, case["history"], case["out_window"], case["in_window"], now)
    if answer > current:
        limit = scale_out_limit(current, case["changes"], case["out_rates"], case["out_select"], now)
        answer = min(answer, max(limit, current))
    elif answer < current:
        limit = scale_in_limit(current, case["changes"], case["in_rates"], case["in_select"], now)
        answer = max(answer, min(limit, current))
    return int(min(max(answer, low), high))
