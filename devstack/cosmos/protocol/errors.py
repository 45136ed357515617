"""Refusals, with the status and sub-status that the service answers with."""

CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    409: "Conflict",
    410: "Gone",
    412: "PreconditionFailed",
    413: "RequestEntityTooLarge",
    423: "Locked",
    424: "FailedDependency",
    429: "TooManyRequests",
    449: "RetryWith",
    500: "InternalServerError",
    503: "ServiceUnavailable",
}

OWNER_NOT_FOUND = 1003
RANGE_GONE = 1002
RID_MISMATCH = 1024
REQUEST_RATE_TOO_LARGE = 3200


class CosmosError(Exception):
    """A refused request or operation.

    `retry_after` is in seconds; None if the service names none. `charge` is in request units.
    """

    charge = 0.0

    def __init__(
        self, status: int, message: str, *, substatus: int = 0, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.substatus = substatus
        self.message = message
        self.retry_after = retry_after

    @property
    def code(self) -> str:
        return CODES.get(self.status, str(self.status))

    @property
    def retry_after_ms(self) -> int | None:
        """Whole milliseconds, at least 1; None if none is named."""
        return None if self.retry_after is None else max(1, round(self.retry_after * 1000))


def bad_request(message: str, *, substatus: int = 0) -> CosmosError:
    return CosmosError(400, message, substatus=substatus)


def not_found(what: str, *, owner: bool = False) -> CosmosError:
    """`owner`: what is missing is not the resource itself but the one that holds it."""
    return CosmosError(404, f"Resource Not Found: {what}", substatus=OWNER_NOT_FOUND if owner else 0)


def throttled(retry_after: float) -> CosmosError:
    return CosmosError(
        429,
        "Request rate is large. More Request Units may be needed, so no changes were made.",
        substatus=REQUEST_RATE_TOO_LARGE,
        retry_after=retry_after,
    )
