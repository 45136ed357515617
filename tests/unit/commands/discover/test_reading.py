"""Which plans `tidemark discover` offers: all but those that the platform itself scales, or that have one instance."""

import pytest

from scaling.calls.limiter import CallRefusedError
from tidemark.commands.discover.reading import SubscriptionReader

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"


class Client:
    """A subscription with one plan."""

    def __init__(self, sku: str, tier: str, **properties) -> None:
        self.plan = {
            "id": f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg/providers/Microsoft.Web/serverfarms/p",
            "name": "p",
            "location": "westeurope",
            "sku": {"name": sku, "tier": tier, "capacity": 2},
            "properties": properties,
        }

    async def entries(self, path, _version):
        if path.endswith("/Microsoft.Web/serverfarms"):
            yield self.plan


@pytest.mark.parametrize(
    ("sku", "tier", "most"),
    [
        ("B1", "Basic", 3),
        ("P1v3", "PremiumV3", 30),
        ("P1mv3", "PremiumMV3", 30),
        ("P1v4", "PremiumV4", 30),
        ("P1mv4", "PremiumMV4", 30),
        ("I1mv2", "IsolatedMV2", 100),
        ("P0v9", "Premium V9", None),
        ("", "", None),
    ],
)
async def test_a_plan_whose_tier_is_new_is_offered_too(sku, tier, most):
    found = await SubscriptionReader(Client(sku, tier), SUBSCRIPTION).read()

    assert found.left_out == ()
    assert [(each.kind, each.size, each.most) for each in found.targets] == [("app_service_plan", 2, most)]


@pytest.mark.parametrize(
    ("sku", "tier", "properties", "why"),
    [
        ("EP1", "ElasticPremium", {}, "ignored on Elastic Premium plans"),
        ("EP1", "", {}, "ignored on Elastic Premium plans"),
        ("Y1", "Dynamic", {}, "the platform itself scales a Consumption plan"),
        ("FC1", "FlexConsumption", {}, "the platform itself scales a Flex Consumption plan"),
        ("F1", "Free", {}, "one shared instance"),
        ("P1v3", "PremiumV3", {"elasticScaleEnabled": True}, "automatic scaling is on"),
    ],
)
async def test_a_plan_that_cannot_be_scaled_is_left_out_with_the_reason(sku, tier, properties, why):
    found = await SubscriptionReader(Client(sku, tier, **properties), SUBSCRIPTION).read()

    assert found.targets == ()
    assert why in found.left_out[0]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (True, ", scaled by app (perSiteScaling)"),
        ("Enabled", ", scaled by app (perSiteScaling)"),
        (False, ""),
        ("False", ""),
        (None, ""),
    ],
)
async def test_a_plan_that_scales_by_app_or_says_what_nobody_knows_is_offered_and_says_so(told, said):
    found = await SubscriptionReader(Client("P1v3", "PremiumV3", perSiteScaling=told), SUBSCRIPTION).read()

    assert found.targets[0].note == f"App Service plan, P1v3, westeurope{said}"


@pytest.mark.parametrize(
    ("namespaces", "unread"),
    [
        (CallRefusedError("management.azure.com asked to wait", 1235.0), "again in 1235 s"),
        (ValueError("no list"), "no list"),
        ({"serviceBusEndpoint": "https://[/"}, "ValueError: Invalid IPv6 URL"),
    ],
)
async def test_what_cannot_be_read_is_told_and_the_rest_is_read(namespaces, unread):
    class Odd(Client):
        async def entries(self, path, version):
            if path.endswith("/Microsoft.EventHub/namespaces"):
                if isinstance(namespaces, Exception):
                    raise namespaces
                yield {"id": "/n", "name": "n", "sku": {"capacity": 1}, "properties": namespaces}
            async for each in super().entries(path, version):
                yield each

    found = await SubscriptionReader(Odd("P1v3", "PremiumV3"), SUBSCRIPTION).read()

    assert [each.name for each in found.targets if each.kind == "app_service_plan"] == ["p"]
    assert unread in found.unread[0]
