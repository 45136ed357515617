"""The doctor tries what each hub of the consumer's file needs, and what they share once."""

from consumer.doctor.checks import checks_of

SETTINGS = {
    "EventHubConnection": "Endpoint=sb://one.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
    "CosmosConnection": "AccountEndpoint=https://x.documents.azure.com:443/;AccountKey=a2V5;",
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
}
FILE = """
version = 1
[hubs.a]
hub = "a"
[[hubs.a.routes]]
when = "x"
to = "one"
[[hubs.a.routes]]
to = "two"
[hubs.b]
hub = "b"
[[hubs.b.routes]]
to = "one"
[sinks]
one = { type = "cosmos", database = "db", container = "one" }
two = { type = "cosmos", database = "db", container = "two" }
"""


async def test_the_doctor_tries_every_hub_and_every_container_once(tmp_path):
    (tmp_path / "f.toml").write_text(FILE)
    checks = checks_of({**SETTINGS, "CONSUMER_FILE": str(tmp_path / "f.toml")}, tmp_path)

    assert [(check.name, check.subject) for check in checks if check.name in {"receive", "write"}] == [
        ("receive", "hub a, group $Default"),
        ("write", "container db/one"),
        ("write", "container db/two"),
        ("receive", "hub b, group $Default"),
    ]
    assert [finding.found for finding in await checks[0].call()] == [
        "hub 'a', group '$Default', sink one, two",
        "hub 'b', group '$Default', sink one",
    ]


async def test_a_file_that_cannot_be_read_is_one_failed_check(tmp_path):
    [check] = checks_of({**SETTINGS, "CONSUMER_FILE": str(tmp_path / "none.toml")}, tmp_path)

    assert "the file cannot be read" in (await check.call())[0].found
