"""The Python SDK's own idempotent producer: azure-eventhub 5.4.0b1, the only release that ever had one.

Runs in a virtual environment of its own, on uamqp: nothing of it but this file is ours. Prints as JSON what became of
each step. Arguments: connection string, hub, port, certificate, and the steps as JSON, each
["send", producer, [bodies]], ["open", producer, {options}] or ["state", producer].
"""

import json
import sys

from azure.eventhub import EventData, EventHubProducerClient


def opened(connection, hub, port, certificate, config):
    client = EventHubProducerClient.from_connection_string(
        connection,
        eventhub_name=hub,
        connection_verify=certificate,
        enable_idempotent_partitions=True,
        partition_config={"0": config} if config else None,
        retry_total=3,
        retry_backoff_factor=0.05,
    )
    client._config.connection_port = int(port)  # there is no option for a port other than 5671
    return client


def send(client, bodies):
    batch = client.create_batch(partition_id="0")
    for body in bodies:
        batch.add(EventData(body))
    try:
        client.send_batch(batch)
    except Exception as error:  # whatever it is, the test looks at it
        return f"{type(error).__name__}: {error}"
    return batch.starting_published_sequence_number


def main(connection, hub, port, certificate, steps):
    clients, results = {}, []
    for action, name, *argument in json.loads(steps):
        if action == "open":
            clients[name] = opened(connection, hub, port, certificate, *argument)
        elif action == "send":
            results.append(send(clients[name], *argument))
        else:
            results.append(clients[name].get_partition_publishing_properties("0"))
    for client in clients.values():
        client.close()
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
