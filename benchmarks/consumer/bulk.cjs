// The JavaScript SDK's bulk: the closest peer there is, for Python's has none.
//
//     COSMOS_SDK=... node bulk.cjs bulk|execute ENDPOINT KEY DATABASE CONTAINER DOCUMENTS.json
//
// The documents are parsed before the clock starts; ours starts from bytes.
const {readFileSync} = require("node:fs");
const {CosmosClient} = require(process.env.COSMOS_SDK);

const [how, endpoint, key, database, name, file] = process.argv.slice(2);
const documents = JSON.parse(readFileSync(file, "utf8"));
const AT_ONCE = 8; // requests of items.bulk; executeBulkOperations decides by itself

async function bulk(container, operations) {
  let next = 0;
  async function work() {
    while (next < operations.length) {
      const start = next;
      next += 100; // the limit; they are sorted by physical partition, so that this is one request
      const answers = await container.items.bulk(operations.slice(start, next), {continueOnError: true});
      check(answers.map((each) => each.statusCode));
    }
  }
  await Promise.all(Array.from({length: AT_ONCE}, work));
}

async function execute(container, operations) {
  const answers = await container.items.executeBulkOperations(operations);
  check(answers.map((each) => each.response.statusCode));
}

function check(statuses) {
  const bad = statuses.find((status) => status !== 200 && status !== 201);
  if (bad !== undefined) throw new Error(`not written: ${bad}`);
}

(async () => {
  const cpu = process.cpuUsage();
  const began = performance.now();
  const client = new CosmosClient({endpoint, key, connectionPolicy: {enableEndpointDiscovery: false}});
  const container = client.database(database).container(name);
  const operations = documents.map((document) => ({
    operationType: "Upsert", partitionKey: document.device, resourceBody: document}));
  await (how === "bulk" ? bulk : execute)(container, operations);
  const {user, system} = process.cpuUsage(cpu);
  const wall = (performance.now() - began) / 1e3;
  console.log(JSON.stringify({records: operations.length, wall, cpu: (user + system) / 1e6}));
  client.dispose();
})();
