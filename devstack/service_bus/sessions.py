"""Sessions of a queue: who has locked which, and the state that receivers keep with them.

Pure. A session stays locked for as long as its receiver is attached; it does not run out on its own.
"""

from devstack.amqp.wire.errors import AmqpError

SESSION_FILTER = "com.microsoft:session-filter"
LOCKED_UNTIL = "com.microsoft:locked-until-utc"
SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
TIMEOUT = "com.microsoft:timeout"
"""A condition, and the property of a link by which a client says how long it waits for a session, in milliseconds."""

_DOTNET_EPOCH_TICKS = 621355968000000000  # 1970, in units of 100 ns since the year 1


class Sessions:
    """The locked sessions of a queue, and the states of all."""

    def __init__(self) -> None:
        self._locked: set[str] = set()
        self.states: dict[str, bytes] = {}

    def lock(self, wanted: str | None, waiting: list[str]) -> str:
        """Lock this session, or for None the first of those with messages that is free; returns its id.

        Raises AmqpError if it is locked already, or none is free.
        """
        if wanted is None:
            free = self.free_of(waiting)
            if not free:
                raise AmqpError(TIMEOUT, "there is no session with messages that is not locked")
            wanted = free[0]
        elif wanted in self._locked:
            raise AmqpError(SESSION_CANNOT_BE_LOCKED, f"session {wanted!r} is locked by another receiver")
        self._locked.add(wanted)
        return wanted

    def free_of(self, waiting: list[str]) -> list[str]:
        """Those that nobody has locked."""
        return [session for session in waiting if session not in self._locked]

    def unlock(self, session: str) -> None:
        self._locked.discard(session)

    def check_locked(self, session: str) -> None:
        """Raises AmqpError unless somebody holds the session."""
        if session not in self._locked:
            raise AmqpError(SESSION_LOCK_LOST, f"session {session!r} is not locked")


def to_ticks(seconds: float) -> int:
    """.NET's ticks of a time in seconds since 1970."""
    return _DOTNET_EPOCH_TICKS + round(seconds * 10_000_000)
