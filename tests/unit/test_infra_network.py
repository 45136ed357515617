"""The virtual network: who calls from which subnet, what is closed, which names lead inside."""

from __future__ import annotations

import ipaddress

import pytest

from tests.support.infra.templates import NAMESPACE, SUBNETS, WORLDS, deployed, only, settings

STORAGE, SITE = "Microsoft.Storage/storageAccounts", "Microsoft.Web/sites"
ENDPOINT, ZONE = "Microsoft.Network/privateEndpoints", "Microsoft.Network/privateDnsZones"
PRIVATE = [name for name in WORLDS if name.startswith("private network")]
DELEGATION = {
    "FlexConsumption": "Microsoft.App/environments",
    "ElasticPremium": "Microsoft.Web/serverFarms",
    "Dedicated": "Microsoft.Web/serverFarms",
}


def test_without_a_network_nothing_of_one_is_made_and_identities_guard_the_public_endpoints() -> None:
    found = deployed("everything")

    assert not [each for each in found.resources if each.type.startswith("Microsoft.Network/")]
    assert "virtualNetworkSubnetId" not in only("everything", SITE).properties
    assert only("everything", STORAGE).properties["publicNetworkAccess"] == "Enabled"
    assert only("everything", SITE).properties["publicNetworkAccess"] == "Enabled"
    assert "vnetConfiguration" not in only("everything", "Microsoft.App/managedEnvironments").properties


@pytest.mark.parametrize("world", PRIVATE)
def test_the_network_has_subnets_that_do_not_overlap_each_delegated_to_its_platform(world: str) -> None:
    properties = only(world, "Microsoft.Network/virtualNetworks").properties
    (whole,) = map(ipaddress.ip_network, properties["addressSpace"]["addressPrefixes"])
    subnets = {each["name"]: each["properties"] for each in properties["subnets"]}
    ranges = [ipaddress.ip_network(each["addressPrefix"]) for each in subnets.values()]
    delegated = {
        name: [each["properties"]["serviceName"] for each in subnet.get("delegations", [])]
        for name, subnet in subnets.items()
    }

    assert all(each.subnet_of(whole) and each.prefixlen <= 27 for each in ranges)  # type: ignore[arg-type]
    assert not any(a.overlaps(b) for a in ranges for b in ranges if a is not b)
    assert delegated == {
        "app": [DELEGATION[WORLDS[world]["hostingPlan"]]],
        "consumer": ["Microsoft.App/environments"],
        "endpoints": [],
    }


@pytest.mark.parametrize("world", [*PRIVATE, "subnets that exist"])
def test_storage_is_closed_and_the_app_reaches_each_of_its_services_by_a_private_name(world: str) -> None:
    account = only(world, STORAGE)
    site = only(world, SITE)
    reached = {
        each.properties["privateLinkServiceConnections"][0]["properties"]["groupIds"][0]: each
        for each in deployed(world).of_type(ENDPOINT)
        if each.properties["privateLinkServiceConnections"][0]["properties"]["privateLinkServiceId"]
        == account.id
    }

    assert account.properties["publicNetworkAccess"] == "Disabled"
    assert account.properties["networkAcls"]["defaultAction"] == "Deny"
    assert set(reached) == {"blob", "queue", "table"}
    assert {each.id for each in reached.values()} <= site.after  # the host opens its storage when it starts
    assert site.properties["virtualNetworkSubnetId"].endswith("/subnets/app")


@pytest.mark.parametrize("world", PRIVATE)
def test_every_endpoint_has_its_name_in_a_zone_that_is_linked_to_the_network(world: str) -> None:
    zones = {each.id for each in deployed(world).of_type(ZONE)}
    links = deployed(world).of_type(f"{ZONE}/virtualNetworkLinks")
    groups = deployed(world).of_type(f"{ENDPOINT}/privateDnsZoneGroups")
    named = {
        each.id.rpartition("/privateDnsZoneGroups/")[0]: each.properties["privateDnsZoneConfigs"][0][
            "properties"
        ]["privateDnsZoneId"]
        for each in groups
    }

    assert set(named) == {each.id for each in deployed(world).of_type(ENDPOINT)}
    assert set(named.values()) == zones == {each.id.rpartition("/virtualNetworkLinks/")[0] for each in links}
    network = only(world, "Microsoft.Network/virtualNetworks").id
    assert {each.properties["virtualNetwork"]["id"] for each in links} == {network}


def test_existing_subnets_are_used_as_they_are_and_names_are_left_to_others_where_wished() -> None:
    world = "subnets that exist"
    environment = only(world, "Microsoft.App/managedEnvironments").properties

    assert not deployed(world).of_type("Microsoft.Network/virtualNetworks")
    assert not deployed(world).of_type(ZONE)
    assert only(world, SITE).properties["virtualNetworkSubnetId"] == f"{SUBNETS}app"
    assert environment["vnetConfiguration"]["infrastructureSubnetId"] == f"{SUBNETS}consumer"
    assert {each.properties["subnet"]["id"] for each in deployed(world).of_type(ENDPOINT)} == {
        f"{SUBNETS}endpoints"
    }


def test_an_app_that_is_closed_has_an_endpoint_of_its_own_and_further_resources_have_theirs() -> None:
    world = "private network"
    linked = {
        each.properties["privateLinkServiceConnections"][0]["properties"]["privateLinkServiceId"]
        for each in deployed(world).of_type(ENDPOINT)
    }

    assert only(world, SITE).properties["publicNetworkAccess"] == "Disabled"
    assert {only(world, SITE).id, NAMESPACE} <= linked
    assert only("private network, dedicated", SITE).properties["publicNetworkAccess"] == "Enabled"


def test_elastic_premium_behind_a_network_watches_its_queues_itself() -> None:
    config = only("private network, elastic premium", SITE).properties["siteConfig"]

    assert config["functionsRuntimeScaleMonitoringEnabled"] is True
    assert config["vnetRouteAllEnabled"] is True
    assert (
        only("elastic premium", SITE).properties["siteConfig"]["functionsRuntimeScaleMonitoringEnabled"]
        is False
    )
    assert "AzureWebJobsStorage__blobServiceUri" in settings("private network, elastic premium")
