"""Partition keys, as the SDK for JavaScript deals them out: its rule is that of the service."""

import json
import subprocess

from devstack.event_hubs.storage.partition_keys import partition_of
from devstack.processes.node import ensure_node, ensure_packages
from tidemark.publisher.event_hubs.core.partition_keys import partition_of_key

JAVASCRIPT = """
const { mapPartitionKeyToId } = require(
  require("path").join(process.argv[1], "@azure/event-hubs/dist/commonjs/impl/partitionKeyToIdMapper.js"));
const wanted = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(wanted.map(([key, count]) => mapPartitionKeyToId(key, count))));
"""


def test_thousands_of_keys_go_where_the_sdk_for_javascript_puts_them():
    keys = [f"{prefix}{number}" for prefix in ("N", "schlüssel-", "東京 ") for number in range(700)]
    wanted = [(key, count) for key in keys for count in (4, 7, 32)]
    node = ensure_node()
    said = subprocess.run(
        [node, "-e", JAVASCRIPT, "--", str(ensure_packages(node))],
        input=json.dumps(wanted).encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )

    assert [partition_of(key, count) for key, count in wanted] == json.loads(said.stdout)
    assert [partition_of_key(key, range(count)) for key, count in wanted] == json.loads(said.stdout)
