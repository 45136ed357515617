"""Cosmos DB as the version guard sees it: documents with ETags, and what each step answers. Pure."""

from itertools import count

from msgspec import structs

from consumer.model import Outcome
from consumer.sinks.cosmos.answers import result_of
from consumer.sinks.cosmos.steps import Rules, next_step


class GuardedDocuments:
    """By record key: the ETag, and the stamp of the event that the document was written from."""

    def __init__(self):
        self._etags = count(1)
        self.documents = {}

    def answer(self, record, step):
        """Carries a step out, and gives the answer to its operation."""
        found = self.documents.get(record.key)
        if step.verb == "Create" and found is not None:
            return {"statusCode": 409}
        if step.verb != "Create" and found is None:
            return {"statusCode": 404}
        if step.verb == "Read":
            etag, stamp = found
            return {"statusCode": 200, "eTag": etag, "resourceBody": {"_tv": structs.asdict(stamp)}}
        if step.etag and step.etag != found[0]:
            return {"statusCode": 412}
        etag = f"e{next(self._etags)}"
        self.documents[record.key] = etag, record.change.stamp
        return {"statusCode": 200, "eTag": etag}

    def versions(self):
        """The sequence number in each document."""
        return {key: stamp.n for key, (_, stamp) in self.documents.items()}


def next_or_result(record, step, answer, rules=Rules()):
    """What the sink does after an answer."""
    result = result_of(answer)
    if result.outcome is Outcome.WRITTEN and step.verb != "Read":
        return result
    return next_step(record, step, answer, rules)
