"""Harmless calls that test rights on storage: they read, or delete what is absent, which needs the same role.

They raise the errors of the SDKs.
"""

from __future__ import annotations

from azure.core.exceptions import ResourceNotFoundError

from tidemark.foundation.azure.connections import Settings, blob_container, table_service

NOTHING = "tidemark-doctor"
"""Key of a row, name of a blob and id of a document that are never written."""


async def table_absent(settings: Settings, prefix: str, name: str, *, write: bool = True) -> bool:
    """Read the table and, with `write`, delete an absent row; returns whether the table is missing."""
    absent = False
    async with table_service(settings, prefix, retry_total=0) as service:
        client = service.get_table_client(name)
        try:
            rows = client.query_entities(f"PartitionKey eq '{NOTHING}'", results_per_page=1)
            [row async for row in rows]
        except ResourceNotFoundError:
            absent = True
        if write:
            await client.delete_entity(NOTHING, NOTHING)  # the SDK is silent about one that is not there
    return absent


async def blobs_absent(settings: Settings, prefix: str, container: str) -> bool:
    """Delete an absent blob; returns whether the container is missing."""
    async with blob_container(settings, prefix, container, retry_total=0) as client:
        try:
            await client.delete_blob(NOTHING)
        except ResourceNotFoundError as error:
            return "ContainerNotFound" in str(getattr(error, "error_code", ""))
    return False
