// The idempotent producer of the SDK for JavaScript, as its tests switch it on. Prints as JSON what became of each step.
// Arguments: connection string, hub, and the steps as JSON, each ["send", producer, [bodies]], ["open", producer,
// {options}], ["state", producer] or ["buffered", [bodies]].
const { EventHubBufferedProducerClient, EventHubProducerClient } = require("@azure/event-hubs");

const retryOptions = { maxRetries: 3, retryDelayInMs: 50, timeoutInMs: 5000 };

function opened(connection, hub, options) {
  const client = new EventHubProducerClient(connection, hub, { retryOptions });
  client._enableIdempotentRetries = true;
  client._partitionOptions = { 0: options };
  return client;
}

async function send(client, bodies) {
  try {
    const batch = await client.createBatch({ partitionId: "0" });
    for (const body of bodies) batch.tryAdd({ body });
    await client.sendBatch(batch);
    return batch.startingPublishedSequenceNumber;
  } catch (error) {
    return `${error.code}: ${error.message}`;
  }
}

async function buffered(connection, hub, bodies) {
  const failed = [];
  const client = new EventHubBufferedProducerClient(connection, hub, {
    retryOptions,
    enableIdempotentRetries: true,
    maxWaitTimeInMs: 50,
    onSendEventsErrorHandler: async (context) => failed.push(String(context.error)),
  });
  for (const body of bodies) await client.enqueueEvent({ body }, { partitionId: "0" });
  await client.close();
  return failed;
}

async function main(connection, hub, steps) {
  const clients = {}, results = [];
  for (const [action, ...rest] of JSON.parse(steps)) {
    if (action === "open") clients[rest[0]] = opened(connection, hub, rest[1]);
    else if (action === "send") results.push(await send(clients[rest[0]], rest[1]));
    else if (action === "state") results.push(await clients[rest[0]].getPartitionPublishingProperties("0"));
    else results.push(await buffered(connection, hub, rest[0]));
  }
  for (const client of Object.values(clients)) await client.close();
  console.log(JSON.stringify(results));
}

main(...process.argv.slice(2));
