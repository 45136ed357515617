"""The local Resource Manager for clients that come with a managed identity."""

from contextlib import asynccontextmanager

from devstack.resource_manager import ResourceManagerServer
from devstack.servers.certificates import ensure_certificate

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"


@asynccontextmanager
async def resource_manager(tmp_path_factory, monkeypatch, **options):
    """A server, and the environment in which the SDK finds its identity endpoint."""
    certificate = ensure_certificate(tmp_path_factory.getbasetemp() / "certificate")
    async with ResourceManagerServer(certificate=certificate, **options) as server:
        monkeypatch.setenv("IDENTITY_ENDPOINT", server.identity_endpoint)
        monkeypatch.setenv("IDENTITY_HEADER", server.identity_header)
        yield server


def arm_settings(server, **more):
    return {
        "AZURE_RESOURCE_MANAGER_ENDPOINT": server.base_url,
        "AzureResourceManager__credential": "managedidentity",
        "TIDEMARK_CA_BUNDLE": str(server.ca_path),
        **more,
    }
