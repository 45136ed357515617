"""What all connections to the namespace share."""

from collections import deque
from typing import NamedTuple, Protocol

from devstack.amqp.links import Link
from devstack.amqp.timers import Timers
from devstack.amqp.wire.errors import NOT_FOUND, AmqpError
from devstack.event_hubs.storage.hubs import Hub, Hubs
from devstack.event_hubs.storage.log import Clock
from devstack.servers.faults import FaultRegistry

_REFUSED_KEPT = 1000


class End(Protocol):
    """Our end of a link to a hub."""

    hub: Hub

    @property
    def link(self) -> Link: ...


class Authorized(Protocol):
    """A connection as far as its token goes."""

    def check_token(self) -> None:
        """Detach its links if the token has run out."""


class Refused(NamedTuple):
    """A link that was not attached, and why: clients are known to keep it to themselves."""

    address: str
    condition: str
    description: str


class Namespace(Timers):
    """`clock` in seconds since 1970; `key` signs the tokens."""

    def __init__(self, hubs: Hubs, faults: FaultRegistry, clock: Clock, key: str) -> None:
        super().__init__()
        self.hubs = hubs
        self.faults = faults
        self.clock = clock
        self.key = key
        self.ends: set[End] = set()
        self.peers: set[Authorized] = set()
        self.refused: deque[Refused] = deque(maxlen=_REFUSED_KEPT)

    def advance(self) -> None:
        """Do everything that is due by now: retention, and tokens that have run out."""
        self.hubs.advance()
        for peer in list(self.peers):
            peer.check_token()

    def delete_hub(self, name: str) -> Hub:
        """With all its events, and hang up on those who use it; raises AmqpError if there is none."""
        hub = self.hubs.delete(name)
        for end in list(self.ends):
            if end.hub is hub:
                end.link.detach(
                    AmqpError(NOT_FOUND, f"The messaging entity {hub.name!r} could not be found.")
                )
        return hub

    def close(self) -> None:
        super().close()
        self.hubs.close()
