"""Errors of the protocol and the conditions they travel under."""

from devstack.amqp.wire.values import Described, Symbol, ULong

DECODE_ERROR = "amqp:decode-error"
FRAMING_ERROR = "amqp:connection:framing-error"
INVALID_FIELD = "amqp:invalid-field"
NOT_ALLOWED = "amqp:not-allowed"
NOT_FOUND = "amqp:not-found"
NOT_IMPLEMENTED = "amqp:not-implemented"
UNAUTHORIZED = "amqp:unauthorized-access"
DETACH_FORCED = "amqp:link:detach-forced"
MESSAGE_TOO_LARGE = "amqp:link:message-size-exceeded"
SERVER_BUSY = "com.microsoft:server-busy"

_ERROR_DESCRIPTOR = ULong(0x1D)


class AmqpError(Exception):
    """A refusal that the peer is told about.

    `condition` is the symbol of the error, `description` its text for humans.
    """

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description

    def described(self) -> Described:
        """The error as a value of the wire."""
        return Described(_ERROR_DESCRIPTOR, [Symbol(self.condition), self.description, None])


class ProtocolError(AmqpError):
    """The peer sent something the protocol does not allow; the connection cannot go on."""

    def __init__(self, description: str, condition: str = DECODE_ERROR) -> None:
        super().__init__(condition, description)
