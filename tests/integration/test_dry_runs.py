"""A dry run of any command changes nothing, anywhere: no table, container, file, document or position."""

import asyncio
import contextlib
import json

import pytest
import typer
from azure.storage.blob import BlobServiceClient
from typer.testing import CliRunner

from consumer.cli.commands import mount
from consumer.definition.loading import find_hub, load_definition
from consumer.running.process import ConsumerProcess
from devstack.cosmos.protocol.errors import CosmosError
from tests.support.consumer.stack import consumer_world
from tests.support.servers.event_hubs import HUB

pytestmark = [pytest.mark.wire, pytest.mark.timeout(120)]

DRY = [
    ["dead-letters", "replay", "--all", "--dry-run"],
    ["dead-letters", "replay", "--all", "--dry-run", "--parked"],
    ["dead-letters", "purge", "--all", "--dry-run"],
    ["dead-letters", "purge", "--all", "--dry-run", "--parked"],
    ["dead-letters", "list"],
    ["dead-letters", "list", "--parked", "--json"],
    ["checkpoints", "set", "--all", "--earliest", "--dry-run"],
    ["checkpoints", "show", "--json"],
]

FILE = """
version = 1
[hubs.flights]
hub = "{hub}"
[[hubs.flights.routes]]
to = "rows"
also = true
[[hubs.flights.routes]]
to = "files"
also = true
[[hubs.flights.routes]]
to = "table"
also = true
[[hubs.flights.routes]]
to = "copy"
also = true
[[hubs.flights.routes]]
to = "documents"
[sinks.rows]
type = "delta"
uri = "{folder}/rows"
create = true
columns = {{ id = "string" }}
commit_every = "0.2s"
[sinks.files]
type = "parquet"
container = "{name}-files"
create = true
columns = {{ id = "string" }}
commit_every = "0.2s"
[sinks.table]
type = "sql"
connection = "CONSUMER_SQL_URL"
[sinks.copy]
type = "event_hubs"
connection = "EventHubConnection"
hub = "copy"
state_container = "{name}-state"
[sinks.documents]
type = "cosmos"
database = "db"
container = "flights"
guard = "number"
"""


class World:
    def __init__(self, world, folder, stores, several):
        self.world, self.folder, self.stores = world, folder, stores
        self.name = world.settings["BLOB_CONTAINER"]
        folder.mkdir()
        text = FILE.format(hub=HUB, folder=folder, name=self.name)
        (folder.parent / "consumer.toml").write_text(text)
        self.settings = {
            **world.settings,
            "CONSUMER_SQL_URL": f"sqlite:///{folder}/consumer.db",
            "CONSUMER_DEAD_LETTERS": stores,
            "CONSUMER_CHECKPOINTS": "sql" if stores == "sql" else "blob",
            "CONSUMER_PARK": "status_404",
        }
        if several:
            self.settings["CONSUMER_FILE"] = str(folder.parent / "consumer.toml")
        elif stores == "sql":
            self.settings |= {"CONSUMER_SINK": "sql", "CONSUMER_PARK": ""}
        (folder.parent / "local.settings.json").write_text(json.dumps({"Values": self.settings}))

    def everything(self):
        """All that a consumer could have changed."""
        containers = BlobServiceClient.from_connection_string(self.settings["AzureWebJobsStorage"])
        blobs = {
            f"{each.name}/{blob.name}": blob.etag
            for each in containers.list_containers()
            if each.name.startswith((self.name, self.settings["CONSUMER_DEAD_LETTER_CONTAINER"]))
            for blob in [*containers.get_container_client(each.name).list_blobs(), each]
        }
        files = {str(path): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        documents = {}
        for name in ("flights", self.settings["CONSUMER_DEAD_LETTER_CONTAINER"]):
            with contextlib.suppress(CosmosError):  # it is not there
                documents[name] = self.world.cosmos.documents("db", name)
        copies = [self.world.event_hubs.events("copy", "0")]
        return blobs, files, documents, copies

    async def consume(self, dry_run):
        settings = {**self.settings, "CONSUMER_UNTIL": "latest", "COSMOS_WRITE": str(not dry_run).lower()}
        hub = find_hub(load_definition(settings), None)
        process = ConsumerProcess(hub.config, hub.settings, hub=hub)
        async with asyncio.timeout(60):
            return (await process.run(asyncio.Event())).totals

    async def run(self, *arguments):
        app = typer.Typer()
        mount(app)
        options = ["--root", str(self.folder.parent)]
        result = await asyncio.to_thread(
            CliRunner().invoke, app, [*arguments, *options], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result.output


@pytest.mark.parametrize(("stores", "several"), [("blob", True), ("sql", False), ("cosmos", False)])
async def test_a_dry_run_changes_nothing_before_the_first_start_and_after_it(
    stores, several, azurite, tmp_path, monkeypatch
):
    async with consumer_world(azurite, tmp_path, partitions=1) as world:
        world.event_hubs.create_hub("copy", 1)
        here = World(world, tmp_path / "data", stores, several)
        for name in here.settings:
            monkeypatch.delenv(name, raising=False)
        world.produce(20, partitions=1)
        world.event_hubs.append(HUB, "0", [b"{"])
        for starts in (0, 1):
            before = await asyncio.to_thread(here.everything)
            assert any(before[:2]) is bool(starts)
            assert (await here.consume(dry_run=True)).written > 0 or starts
            for arguments in DRY:
                output = await here.run(*arguments)
                assert ("dry run: nothing" in output) is ("--dry-run" in arguments)
            assert await asyncio.to_thread(here.everything) == before
            if not starts:
                await here.consume(dry_run=False)
                assert "1 dead letter" in await here.run("dead-letters", "list")
