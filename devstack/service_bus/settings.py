"""What can be set for a queue, a topic or a subscription."""

from dataclasses import dataclass, field

STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")


@dataclass(frozen=True, slots=True)
class EntityLimits:
    """What an entity takes at once, in bytes; what is None goes by the namespace.

    `message` for a message of its own, `batch` for a batch; the latter is announced as a property of the link, as the
    service does. `unannounced` refuses what is larger without giving figures. `header` is what the entity counts for
    every message beyond its bytes; it shows in the figures of a refusal only. `partitioned` takes only one session id
    or partition key in a batch.
    """

    message: int | None = None
    batch: int | None = None
    unannounced: int | None = None
    header: int = 0
    partitioned: bool = False


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What can be set for a queue or subscription. Defaults are those of the service."""

    lock_duration: float = 60.0  # seconds
    max_delivery_count: int = 10
    default_ttl: float | None = None  # seconds; None: messages do not expire
    dead_letter_on_expiration: bool = False
    status: str = "Active"
    limits: EntityLimits = field(default_factory=EntityLimits)
    duplicate_window: float | None = (
        None  # seconds in which a message id is known; None: no duplicate detection
    )
    requires_session: bool = False
    dead_letter_on_filter_errors: bool = True  # of a subscription; the service's default

    def __post_init__(self) -> None:
        if self.lock_duration <= 0:
            raise ValueError(f"lock_duration is {self.lock_duration}, accepted: more than 0 seconds")
        if self.max_delivery_count < 1:
            raise ValueError(f"max_delivery_count is {self.max_delivery_count}, accepted: 1 or more")
        check_status(self.status)

    @property
    def sends(self) -> bool:
        return self.status in ("Active", "ReceiveDisabled")

    @property
    def receives(self) -> bool:
        return self.status in ("Active", "SendDisabled")


def check_status(status: str) -> None:
    """Raises ValueError for a status that an entity cannot be set to."""
    if status not in STATUSES:
        raise ValueError(f"status is {status!r}, accepted: {', '.join(STATUSES)}")
