"""Numbers of resources over the wire: kinds that are known, operations that take time, fail, or may not be followed."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from devstack.resource_manager import ResourceManagerServer
from devstack.servers.faults import Fault
from scaling.model import EffectOutcome
from scaling.ports import ScalerError
from scaling.scalers.resource.scaler import AzureResourceScaler
from tests.conformance.test_scalers import NOW, action
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager

pytestmark = pytest.mark.wire

GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg/providers"
SET = f"{GROUP}/Microsoft.Compute/virtualMachineScaleSets/workers"
APP = f"{GROUP}/Microsoft.App/containerApps/shop"
BUS = f"{GROUP}/Microsoft.ServiceBus/namespaces/orders"


@pytest.fixture
async def server(tmp_path_factory, monkeypatch) -> AsyncIterator[ResourceManagerServer]:
    async with resource_manager(tmp_path_factory, monkeypatch) as started:
        yield started


@pytest.fixture
async def scaler_of(server):
    made: list[AzureResourceScaler] = []

    def make(resource_id: str, kind: str, **options: Any) -> AzureResourceScaler:
        given = {"deadline_seconds": 3, "poll_interval_seconds": 0.02, **options}
        made.append(
            AzureResourceScaler(
                AzureResourceScaler.Params(resource_id=resource_id, kind=kind, **given), arm_settings(server)
            )
        )
        return made[-1]

    yield make
    for scaler in made:
        await scaler.aclose()


def machines(server, **options):
    document = {
        "location": "westeurope",
        "sku": {"name": "Standard_D2s_v5", "tier": "Standard", "capacity": 2},
    }
    return server.add_resource(SET, document, poll_after=0.02, **options)


async def test_an_operation_is_followed_to_its_end(server, scaler_of):
    found = machines(server, operation_seconds=0.1)

    effect = await scaler_of(SET, "virtual_machine_scale_set").apply(action(2, 5), now=NOW)

    assert (effect.outcome, effect.reached, effect.detail) == (EffectOutcome.APPLIED, 5, "")
    assert found.document["sku"] == {"name": "Standard_D2s_v5", "tier": "Standard", "capacity": 5}
    assert [entry.method for entry in server.ledger if entry.capacity is not None] == ["PATCH"]


async def test_a_quota_is_a_refusal_and_not_a_conflict_to_wait_for(server, scaler_of):
    machines(server)
    server.faults.add(Fault("arm.patch_resource", "refused"))

    effect = await scaler_of(SET, "virtual_machine_scale_set").apply(action(2, 900), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.REFUSED, 2)
    assert "exceeding approved Total Regional Cores quota" in effect.detail


async def test_a_lost_answer_is_read_back_and_nobody_asks_twice(server, scaler_of):
    machines(server)
    server.faults.add(Fault("arm.patch_resource", "drop_ack"))

    effect = await scaler_of(SET, "virtual_machine_scale_set").apply(action(2, 5), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.APPLIED, 5)
    assert sum(entry.method == "PATCH" for entry in server.ledger) == 1


async def test_replicas_of_a_container_app_go_to_zero_and_back(server, scaler_of):
    app = server.add_resource(
        APP, {"properties": {"template": {"scale": {"minReplicas": 1, "maxReplicas": 30}}}}
    )
    scaler = scaler_of(APP, "container_app_minimum")

    none = await scaler.apply(action(1, 0), now=NOW)
    capacity = await scaler.current("plan", now=NOW)
    one = await scaler.apply(action(0, 1, action_id="plan@2"), now=NOW)

    assert [effect.outcome for effect in (none, one)] == [EffectOutcome.APPLIED] * 2
    assert (capacity.current, capacity.floor, capacity.ceiling) == (0, 0, 30)
    assert app.document["properties"]["template"]["scale"] == {"minReplicas": 1, "maxReplicas": 30}


async def test_messaging_units_are_allowed_values_and_of_premium_only(server, scaler_of):
    found = server.add_resource(BUS, {"sku": {"name": "Premium", "capacity": 2}})
    scaler = scaler_of(BUS, "service_bus_messaging_units")

    between = await scaler.apply(action(2, 3), now=NOW)
    capacity = await scaler.current("plan", now=NOW)
    found.set("sku.name", "Standard")

    assert (between.outcome, between.reached) == (EffectOutcome.LIMITED, 4)
    assert between.detail == "the platform takes 1 to 16 messaging units, allowed are 1, 2, 4, 8, 16"
    assert capacity.allowed == (1, 2, 4, 8, 16)
    with pytest.raises(ScalerError, match=r"cannot be set: sku\.name is 'Standard'"):
        await scaler.current("plan", now=NOW)


async def test_auto_inflate_is_respected_as_another_controller(server, scaler_of):
    hubs = f"{GROUP}/Microsoft.EventHub/namespaces/flights"
    document = {"sku": {"name": "Standard", "capacity": 2}, "properties": {"isAutoInflateEnabled": True}}
    server.add_resource(hubs, document)
    scaler = scaler_of(hubs, "event_hubs_throughput_units")

    effect = await scaler.apply(action(2, 4), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.EXTERNAL_CHANGE, 2)
    assert (await scaler.current("plan", now=NOW)).held_by == "auto-inflate"


async def test_who_may_not_read_is_told_which_rights_it_takes(server, scaler_of):
    machines(server)
    server.faults.add(Fault("arm.get_resource", "error", status=403, count=None))

    with pytest.raises(
        ScalerError, match=r"needs a role with Microsoft\.Compute/virtualMachineScaleSets/read and"
    ):
        await scaler_of(SET, "virtual_machine_scale_set").current("plan", now=NOW)


def named_machines(server, *instances: str, **options):
    found = machines(server, **options)
    found.set("sku.capacity", len(instances))
    found.instances = list(instances)
    return found


def removal(*instances: str, start: int = 4, **changes):
    made = action(start, start - len(instances), **changes)
    return msgspec.structs.replace(made, instances=instances)


@pytest.mark.parametrize("style", ["at once", "over a while", "answer lost"])
async def test_the_instances_that_acknowledged_go_and_no_others_however_often_it_is_delivered(
    server, scaler_of, style
):
    found = named_machines(
        server, "set_0", "set_1", "set_2", "set_7", operation_seconds=0.1 if style == "over a while" else 0.0
    )
    if style == "answer lost":
        server.faults.add(Fault("arm.delete_instances", "drop_ack"))
    scaler = scaler_of(SET, "virtual_machine_scale_set", remove_acknowledged=True)

    effects = [await scaler.apply(removal("set_7", "set_0"), now=NOW) for _ in range(2)]

    assert [(effect.outcome, effect.reached) for effect in effects] == [
        (EffectOutcome.APPLIED, 2),
        (EffectOutcome.ALREADY_THERE, 2),
    ]
    assert found.instances == ["set_1", "set_2"]
    assert [entry.method for entry in server.ledger if entry.method in {"POST", "PATCH"}] == ["POST"]


async def test_an_instance_that_is_gone_already_is_read_back_and_removes_nothing_else(server, scaler_of):
    found = named_machines(server, "set_0", "set_1", "set_2", "set_3")
    scaler = scaler_of(SET, "virtual_machine_scale_set", remove_acknowledged=True)

    effect = await scaler.apply(removal("set_9"), now=NOW)

    assert (effect.outcome, effect.reached) == (EffectOutcome.FAILED, 4)
    assert "set_9 is not an active Virtual Machine Scale Set VM instanceId" in effect.detail
    assert len(found.instances) == 4


async def test_without_names_the_platform_chooses(server, scaler_of):
    found = named_machines(server, "set_0", "set_1")

    await scaler_of(SET, "virtual_machine_scale_set", remove_acknowledged=True).apply(action(2, 1), now=NOW)

    assert (found.value("sku.capacity"), len(found.instances)) == (1, 2)  # a PATCH of the number
