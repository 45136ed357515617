"""Where a backfill writes in tests: a local Cosmos DB and an Azurite, with the consumer's settings; and the capture files that it reads."""

from azure.cosmos import CosmosClient

from devstack.event_hubs.storage.capture import CapturedEvent, write_capture
from spark_jobs.backfill.run import BackfillSettings
from tests.support.consumer.backfill import documents, settings

FAST = BackfillSettings("upsert", records_per_second=100_000)


class World:
    def __init__(self, running, azurite):
        self._running = running
        self.settings = settings(running.call(lambda: running.server.connection_string), azurite)

    def documents(self):
        return self._running.call(lambda: documents(self._running.server))

    def remove(self, name):
        client = CosmosClient.from_connection_string(self.settings["CosmosConnection"])
        container = client.get_database_client("db").get_container_client("flights")
        container.delete_item(name, self.documents()[name]["origin"])

    def count(self):
        return self._running.call(lambda: self._running.server.document_count("db", "flights"))

    def operations(self):
        return self._running.call(lambda: self._running.server.stats().operations)


def captured(folder, rows, **options):
    """Capture files of rows."""
    return write_capture(
        folder,
        "flights",
        [
            CapturedEvent(
                each[1], each[2], each[3], each[4], None if each[5] is None else bytes(each[5]), each[6]
            )
            for each in sorted(rows, key=lambda each: (each[1], each[2]))
        ],
        **options,
    )
