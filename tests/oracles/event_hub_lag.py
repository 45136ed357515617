"""How KEDA 2.20 and the Azure Functions host count the events a consumer group has not processed.

Written down from their sources, which are Go and C# (azure_eventhub_scaler.go; EventHubMetricsProvider.cs), to
show where they differ from the lag. Nothing here is shared with the code under test. `checkpoint` is None
where there is no blob.
"""

import math

INT64_MAX = 2**63 - 1
KEDA_STALE_THRESHOLD = 10_000


def _int64(value):
    """Wraps as unchecked 64-bit arithmetic does."""
    return (value + 2**63) % 2**64 - 2**63


def keda(begin, last, checkpoint, is_empty=False, stale_threshold=KEDA_STALE_THRESHOLD):
    if last == -1:
        return 0
    if checkpoint is None:
        first_event_ever = begin == 0 and last == 0
        return last - begin + 1 if first_event_ever or begin != last else 0
    unprocessed = last - checkpoint if last >= checkpoint else (INT64_MAX - checkpoint) + last
    return 0 if unprocessed > INT64_MAX - stale_threshold else unprocessed


def keda_metric(total, partitions, threshold):
    """The value handed to the Horizontal Pod Autoscaler, which divides it by the threshold, rounding up."""
    return partitions * threshold if total // threshold > partitions else total


def keda_replicas(total, partitions, threshold):
    return math.ceil(keda_metric(total, partitions, threshold) / threshold)


def functions(begin, last, checkpoint, is_empty=False):
    if last == -1 or last == (-1 if checkpoint is None else checkpoint) or is_empty:
        return 0
    if checkpoint is None and last == begin:
        return 1
    start = begin - 1 if checkpoint is None else checkpoint
    if last > start:
        return last - start
    return max(_int64((INT64_MAX - last) + start), 0)


def functions_instances(total, partitions, target):
    """ceil(total / target), rounded up to a count by which the partitions can be divided evenly."""
    wanted = math.ceil(total / target)
    fair = sorted({0, *(math.ceil(partitions / consumers) for consumers in range(1, partitions + 1))})
    return next((count for count in fair if count >= wanted), partitions)
