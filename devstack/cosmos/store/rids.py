"""Resource ids, in the service's form: base64 of what contains a resource, then its own number."""

from base64 import b64encode


def database_rid(number: int) -> bytes:
    return number.to_bytes(4)


def container_rid(database: bytes, number: int) -> bytes:
    return database + (0x80000000 | number).to_bytes(4)


def document_rid(container: bytes, number: int) -> bytes:
    return container + number.to_bytes(8, "little")


def rid_text(rid: bytes) -> str:
    return b64encode(rid, b"+-").decode()
