"""Azure Schema Registry on one machine, for the unmodified SDKs, and the part of a registry of Confluent's kind that readers ask.

    async with SchemaRegistryServer(certificate=certificate) as server:
        SchemaRegistryClient(server.namespace, credential, connection_verify=server.ca_path)

HTTPS with any bearer token. A group is there when it is named; a schema is kept as it was sent, whatever its format. Not there:
compatibility rules of groups, and deleting.

Faults and addresses: devstack.schema_registry.server.
"""

from devstack.schema_registry.server import SchemaRegistryServer

__all__ = ["SchemaRegistryServer"]
