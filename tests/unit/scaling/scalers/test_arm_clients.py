"""Whose token Resource Manager is asked with."""

import pytest

from scaling.scalers.arm.clients import identity_of

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
