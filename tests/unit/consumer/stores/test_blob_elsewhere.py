"""Which containers of an account are looked into for positions, and how many."""

from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from consumer.model import Stream
from consumer.stores.blob import elsewhere

STREAM = Stream("ns.servicebus.windows.net", "h", "g")


class Service:
    """An account with containers by name; those in `holding` have positions."""

    def __init__(self, names, holding=()):
        self.names, self.holding = sorted(names), set(holding)
        self.looked, self.pages = [], 0

    @asynccontextmanager
    async def client(self, *_, **__):
        yield self

    async def list_containers(self, **_):
        for place, name in enumerate(self.names):
            self.pages += place % 5000 == 0
            yield SimpleNamespace(name=name)

    def get_container_client(self, name):
        async def blobs(**_):
            self.looked.append(name)
            if name in self.holding:
                yield SimpleNamespace(metadata={"epoch": "1"})

        return SimpleNamespace(list_blobs=blobs)


async def found_in(service, monkeypatch, own="eventhub-checkpoints", **options):
    endpoint = SimpleNamespace(client=lambda *_, **__: _entered(service))
    monkeypatch.setattr(elsewhere, "storage_endpoint", lambda *_: endpoint)
    return await elsewhere.containers_with_positions({}, "c", STREAM, own, **options)


def _entered(service):
    return service.client()


@pytest.mark.parametrize("is_first", [True, False])
async def test_likely_names_are_looked_into_first_and_few_where_positions_are_here(is_first, monkeypatch):
    """Of 3,000 containers the one of before may come anywhere by name."""
    names = [f"customer-{n:04}" for n in range(3000)] + ["orders-checkpoints", "zz-checkpoints-old"]
    service = Service(names, {"zz-checkpoints-old"})

    found = await found_in(service, monkeypatch, is_first=is_first)

    assert found == ["zz-checkpoints-old"]
    assert len(service.looked) == (elsewhere.MOST if is_first else elsewhere.FEW)
    assert {*service.looked[:2]} == {"orders-checkpoints", "zz-checkpoints-old"}
    assert elsewhere.FEW <= 10
    assert service.pages == 1


async def test_a_name_that_shares_a_word_with_the_own_one_is_likely(monkeypatch):
    names = [f"a{n:03}" for n in range(200)] + ["orders-2"]
    assert await found_in(Service(names, {"orders-2"}), monkeypatch, own="orders-3", is_first=False) == [
        "orders-2"
    ]


async def test_what_belongs_to_services_is_not_looked_into(monkeypatch):
    names = [
        "$logs",
        "azure-webjobs-eventhub",
        "insights-logs-operationallogs",
        "eventhub-checkpoints",
        "other",
    ]
    service = Service(names, names)

    assert await found_in(service, monkeypatch) == ["other"]
    assert service.looked == ["other"]


def account(name):
    return (
        f"DefaultEndpointsProtocol=https;AccountName={name};AccountKey=a2V5;EndpointSuffix=core.windows.net"
    )


def test_other_storage_accounts_are_those_of_connections_that_are_still_set():
    settings = {
        "Storage": account("present"),
        "AzureWebJobsStorage": account("before"),
        "Again": account("present"),
        "Identity__accountName": "another",
        "Twice__blobServiceUri": "https://before.blob.core.windows.net/",
        "Orders": "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
        "Cosmos": "AccountEndpoint=https://x.documents.azure.com/;AccountKey=a2V5",
        "Broken__accountName": "https://no.name",
        "PATH": "/bin",
    }

    assert elsewhere.other_accounts(settings, "Storage") == ["AzureWebJobsStorage", "Identity"]
    assert elsewhere.other_accounts(settings, "AzureWebJobsStorage") == ["Again", "Identity"]


def test_one_account_is_one_however_its_connection_names_it():
    here = "http://127.0.0.1:10000/devstoreaccount1"
    settings = {
        "Key": account("orders"),
        "Token": "BlobEndpoint=https://orders.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=a",
        "Upper": account("Orders") + ";BlobEndpoint=https://ORDERS.blob.core.windows.net",
        "Identity__blobServiceUri": "https://orders.blob.core.windows.net",
        "Local": "UseDevelopmentStorage=true",
        "Spelt": f"AccountName=devstoreaccount1;AccountKey=a2V5;BlobEndpoint={here}",
        "OtherPort": f"AccountName=devstoreaccount1;AccountKey=a2V5;BlobEndpoint={here.replace('10000', '10010')}",
    }

    assert elsewhere.other_accounts(settings, "Key") == ["Local", "OtherPort"]
    assert elsewhere.other_accounts(settings, "Spelt") == ["Identity", "OtherPort"]


async def test_positions_in_the_container_of_another_account_that_is_still_set_are_found(monkeypatch):
    holding, without = Service(["own"], ["own"]), Service(["own"])
    accounts = {"Before": holding, "Other": without, "Away": None}

    def endpoint(_settings, name, _service="blob"):
        def client(*_, **__):
            if accounts[name] is None:
                raise OSError("no route")
            return _entered(accounts[name])

        return SimpleNamespace(client=client, address=f"https://{name}.blob.core.windows.net")

    monkeypatch.setattr(elsewhere, "storage_endpoint", endpoint)
    settings = {f"{name}__accountName": name.lower() for name in ("Present", *accounts)}

    assert await elsewhere.accounts_with_positions(settings, "Present", STREAM, "own") == ["Before"]
    assert without.looked == ["own"]
