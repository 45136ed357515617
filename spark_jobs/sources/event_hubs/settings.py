"""The options of the source "eventhubs", and how the hub that they name stands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from consumer.definition.model import HubDefinition
from consumer.model import PartitionState
from consumer.receiving.receiver import HubReceiver
from spark_jobs.platform.source_options import CONNECTION_STRING, check_secrets, environment, positive
from spark_jobs.sources.event_hubs import positions
from tidemark.analysis.errors import InputError
from tidemark.foundation.azure.connections import ConnectionSettingsError, event_hubs_endpoint
from tidemark.foundation.errors import SettingsError, UnavailableError

NAME = "eventhubs"


log = logging.getLogger("tidemark.spark")


@dataclass(frozen=True)
class HubSettings:
    """The options, parsed."""

    hub: str
    connection: str
    environment: Mapping[str, str]
    """Settings in which the connection is found."""
    consumer_group: str
    start: dict[str, str | int]
    end: dict[str, str | int]
    fail_on_data_loss: bool
    receive_timeout: int

    def __repr__(self) -> str:
        return f"HubSettings({self.hub!r} of {self.connection})"  # no secrets

    @classmethod
    def of(cls, options: Mapping[str, str]) -> HubSettings:
        """Raises InputError naming the option at fault."""
        check_secrets(options)
        hub = options.get("hub")
        text, connection = options.get(CONNECTION_STRING), options.get("connection")
        if not hub or not (text or connection):
            raise InputError(
                f'the source "{NAME}" needs the options hub, and connection or {CONNECTION_STRING}'
            )
        loss = options.get("failOnDataLoss", "true").lower()
        if loss not in {"true", "false"}:
            raise InputError(f"failOnDataLoss is '{loss}'; accepted are true and false")
        settings = cls(
            hub=hub,
            connection=CONNECTION_STRING if text else str(connection),
            environment={**environment(options), **({CONNECTION_STRING: text} if text else {})},
            consumer_group=options.get("consumerGroup") or "$Default",
            start=positions.parse_position(
                options.get("startingPosition") or positions.EARLIEST, "startingPosition"
            ),
            end=positions.parse_position(options.get("endingPosition") or positions.LATEST, "endingPosition"),
            fail_on_data_loss=loss == "true",
            receive_timeout=positive("receiveTimeout", options.get("receiveTimeout") or "60"),
        )
        try:
            event_hubs_endpoint(settings.environment, settings.connection)
        except ConnectionSettingsError as error:
            raise InputError(f'the source "{NAME}": {error}') from error
        return settings

    async def _look(self) -> dict[str, PartitionState]:
        receiver = HubReceiver(self.environment, self.connection, self.hub, self.consumer_group)
        try:
            partitions = await receiver.partitions()
            states = await asyncio.gather(*(receiver.state(partition) for partition in partitions))
        except (SettingsError, UnavailableError) as error:
            raise InputError(f'the source "{NAME}": {error}') from error
        finally:
            await receiver.close(asyncio.get_running_loop().time() + 5.0)
        return {state.partition: state for state in states}

    async def state_of(self, partition: str) -> PartitionState:
        """How a partition stands now. Raises InputError."""
        return (await self._look())[partition]

    def tasks(self) -> Sequence[positions.Range]:
        """One for each partition, as the hub stands now. Raises InputError where events are gone, or logs it, as the settings say."""
        states = asyncio.run(self._look())
        start = positions.resolved(self.start, states, positions.EARLIEST, "startingPosition")
        wanted = positions.ranges(
            start, positions.resolved(self.end, states, positions.LATEST, "endingPosition")
        )
        for task in wanted:
            loss = positions.lost(task, states[task.partition])
            if loss is not None:
                self.report_loss(loss)
        return wanted

    def report_loss(self, loss: str) -> None:
        """Raises InputError, or logs."""
        if self.fail_on_data_loss:
            raise InputError(
                f"event hub '{self.hub}': {loss}; set failOnDataLoss to false to go on without them"
            )
        log.warning("event hub '%s': %s", self.hub, loss)


def created_at(hub: HubDefinition, consumer_group: str) -> float:
    """When the service created the hub, epoch seconds. Raises InputError."""
    config = hub.config

    async def ask() -> float:
        receiver = HubReceiver(hub.settings, config.hub_connection, config.hub, consumer_group)
        try:
            await receiver.partitions()
        except (SettingsError, UnavailableError) as error:
            raise InputError(str(error)) from error
        finally:
            await receiver.close(asyncio.get_running_loop().time() + 5.0)
        return receiver.created_at or 0.0

    return asyncio.run(ask())
