"""Whose token Resource Manager is asked with."""

import pytest
from azure.core.rest import HttpRequest

from scaling.scalers.arm.clients import _options, identity_of

LOCAL = {
    "AZURE_RESOURCE_MANAGER_ENDPOINT": "https://localhost:8443",
    "IDENTITY_ENDPOINT": "http://localhost:8444/msi/token",
    "IDENTITY_HEADER": "local",
}


@pytest.mark.parametrize(
    ("settings", "lent"),
    [
        (LOCAL, {"IDENTITY_ENDPOINT": "http://localhost:8444/msi/token", "IDENTITY_HEADER": "local"}),
        ({**LOCAL, "AZURE_RESOURCE_MANAGER_ENDPOINT": "https://management.azure.com"}, {}),
        ({**LOCAL, "IDENTITY_HEADER": " "}, {}),
        ({}, {}),
    ],
    ids=["the local stack", "Azure beside the local stack", "half of it", "Azure"],
)
def test_the_local_stacks_identity_is_for_its_own_resource_manager_only(settings, lent):
    assert identity_of(settings)._environment == lent


@pytest.mark.parametrize(
    "link",
    [
        "https://attacker.example/operation",
        "http://management.azure.com/next",
        "https://management.azure.com:444/operation",
        "https://management.azure.com@attacker.example/next",
        "https://management.azure.com.attacker.example/next",
        "https://me@management.azure.com/next",
        "https://[/next",
    ],
)
async def test_no_client_follows_a_pager_or_an_operation_to_another_host_with_its_token(link):
    """The pollers of the SDKs go wherever a Location leads, and our lists wherever a nextLink does."""
    async with _options({})["transport"] as transport:
        with pytest.raises(
            ValueError, match=r"where no token of https://management\.azure\.com is sent|Invalid IPv6"
        ):
            await transport.send(HttpRequest("GET", link, headers={"Authorization": "Bearer x"}))
