"""What the tests of the streaming sources share."""

from pyspark.errors import StreamingQueryException

_SLOW = "Python worker failed to connect back"


def finished(start, *, attempts=12):
    """The query that `start` gives, once it has ended.

    Spark lets a stream's Python process ten seconds to begin, which no setting changes: a loaded machine is no failure of
    the code under test, and the checkpoint makes another start harmless.
    """
    for attempt in range(1, attempts + 1):
        query = start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if attempt == attempts or _SLOW not in str(error):
                raise
        else:
            return query
    return None
