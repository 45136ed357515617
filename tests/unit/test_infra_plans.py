"""What each kind of plan refuses, or stops without: app settings, siteConfig, sizes."""

from __future__ import annotations

import re

import pytest

from consumer.config import read_config, read_slice
from devstack.resource_manager.resources.rules import REFUSED_SETTINGS, REFUSED_SITE_CONFIG
from scaling.scalers.app_service.scaler import AppServicePlanScaler
from tests.bicep_language.deployment import expand
from tests.bicep_language.evaluation import BicepEvaluationError
from tests.support.infra.templates import (
    INFRA,
    ROOT,
    SUBSCRIPTION,
    WORLDS,
    deployed,
    only,
    settings,
    timeout_of_functions,
)

PLAN, SITE = "Microsoft.Web/serverfarms", "Microsoft.Web/sites"
KINDS = ("FlexConsumption", "ElasticPremium", "Dedicated")


def worlds_on(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("world", [name for name in WORLDS if WORLDS[name]["hostingPlan"] in kinds])


# What opens a file share by a key, which the account refuses. Azure Files has no other way for an app.
BY_KEY = {"WEBSITE_CONTENTAZUREFILECONNECTIONSTRING", "WEBSITE_CONTENTSHARE", "AzureWebJobsStorage"}


@worlds_on("FlexConsumption")
def test_flex_consumption_is_told_nothing_that_it_refuses(world: str) -> None:
    site = only(world, SITE).properties
    refused = {name.lower() for name in REFUSED_SITE_CONFIG}

    assert set() == REFUSED_SETTINGS & set(settings(world))
    assert set() == refused & {name.lower() for name in site["siteConfig"]}
    assert only(world, PLAN).body["sku"] == {"name": "FC1", "tier": "FlexConsumption"}
    assert only(world, PLAN).body["kind"] == "functionapp"


@worlds_on("FlexConsumption")
def test_flex_consumption_has_runtime_package_and_scale_in_its_own_place(world: str) -> None:
    config = only(world, SITE).properties["functionAppConfig"]
    storage = config["deployment"]["storage"]
    account = only(world, "Microsoft.Storage/storageAccounts").name

    assert config["runtime"] == {"name": "python", "version": WORLDS[world]["pythonVersion"]}
    assert storage["value"] == f"https://{account}.blob.core.windows.net/app-package"
    assert storage["authentication"]["type"] == "UserAssignedIdentity"
    assert config["scaleAndConcurrency"]["instanceMemoryMB"] == 2048
    assert config["scaleAndConcurrency"]["maximumInstanceCount"] == 40


@worlds_on("ElasticPremium", "Dedicated")
def test_the_other_plans_are_told_the_runtime_by_settings_and_nothing_of_flex_consumption(world: str) -> None:
    site, found = only(world, SITE).properties, settings(world)

    assert "functionAppConfig" not in site
    assert site["siteConfig"]["linuxFxVersion"] == f"Python|{WORLDS[world]['pythonVersion']}"
    assert site["siteConfig"]["ftpsState"] == "Disabled"
    assert (found["FUNCTIONS_EXTENSION_VERSION"], found["FUNCTIONS_WORKER_RUNTIME"]) == ("~4", "python")


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_no_plan_is_given_a_file_share_or_a_key(world: str) -> None:
    assert set() == BY_KEY & set(settings(world))
    plans = list(deployed(world).of_type(PLAN))  # none, where another Tidemark scales it
    assert [plan.properties["reserved"] for plan in plans] == [True] * (
        not WORLDS[world]["planIsScaled"]
    )  # Linux


@worlds_on("ElasticPremium")
def test_elastic_premium_runs_the_package_that_its_identity_reads(world: str) -> None:
    found, config = settings(world), only(world, SITE).properties["siteConfig"]
    plan = only(world, PLAN).body
    identity = only(world, "Microsoft.ManagedIdentity/userAssignedIdentities").id
    account = only(world, "Microsoft.Storage/storageAccounts").name
    limit = WORLDS[world]["elasticInstanceLimit"]

    package = f"https://{account}.blob.core.windows.net/app-package/tidemark.zip"
    assert found["WEBSITE_RUN_FROM_PACKAGE"] == package
    assert found["WEBSITE_RUN_FROM_PACKAGE_BLOB_MI_RESOURCE_ID"] == identity
    assert "SCM_DO_BUILD_DURING_DEPLOYMENT" not in found  # a package from elsewhere is not built
    assert plan["kind"] == "elastic"
    assert re.fullmatch(r"EP[123]", plan["sku"]["name"])
    assert plan["sku"]["capacity"] <= plan["properties"]["maximumElasticWorkerCount"] == limit
    assert config["minimumElasticInstanceCount"] <= config["functionAppScaleLimit"] == limit
    assert "alwaysOn" not in config  # of Dedicated only


@worlds_on("Dedicated")
def test_a_dedicated_plan_is_always_on_and_builds_what_it_is_given(world: str) -> None:
    found = settings(world)

    assert only(world, SITE).properties["siteConfig"]["alwaysOn"] is True
    assert (found["ENABLE_ORYX_BUILD"], found["SCM_DO_BUILD_DURING_DEPLOYMENT"]) == ("true", "true")
    assert "WEBSITE_RUN_FROM_PACKAGE" not in found
    if WORLDS[world]["planIsScaled"]:
        return
    plan = only(world, PLAN).body
    assert plan["sku"]["capacity"] == WORLDS[world]["planInstances"]
    assert not plan["sku"]["name"].startswith(("F", "Y", "EP"))


MOST = {
    "FlexConsumption": "maximumInstanceCount",
    "ElasticPremium": "elasticInstanceLimit",
    "Dedicated": "planInstances",
}


@pytest.mark.parametrize("world", sorted(WORLDS))
def test_the_ceiling_of_the_triggers_rate_is_known_to_the_app(world: str) -> None:
    given = WORLDS[world]
    most = given["consumerMaximumInstances"] or given[MOST[given["hostingPlan"]]]

    assert settings(world)["CONSUMER_MAXIMUM_INSTANCES"] == str(most)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maximumInstanceCount", 39),
        ("maximumInstanceCount", 1001),
        ("instanceMemoryMB", 1024),
        ("elasticInstanceLimit", 101),
        ("planInstances", 0),
        ("hostingPlan", "Consumption"),
        ("plans", [{"setting": "A"}]),
        ("plans", [{"id": "", "name": "A"}]),
    ],
)
def test_a_value_that_the_platform_refuses_is_refused_before(name: str, value: object) -> None:
    given = {**WORLDS["as it comes"], name: value}

    with pytest.raises(BicepEvaluationError, match=name):
        expand(INFRA / "main.bicep", given, subscription=SUBSCRIPTION)


def test_a_plan_that_another_scales_is_left_as_it_is_and_its_app_knows_the_most_instances() -> None:
    world = "dedicated, scaled by another"

    assert list(deployed(world).of_type(PLAN)) == []
    assert only(world, SITE).properties["serverFarmId"].rpartition("/")[2].startswith("plan-tidemark-")
    assert settings(world)["CONSUMER_MAXIMUM_INSTANCES"] == "8"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"planIsScaled": True}, "planIsScaled is of a Dedicated plan"),
        ({"planIsScaled": True, "hostingPlan": "Dedicated"}, "consumerMaximumInstances is needed"),
    ],
)
def test_a_plan_that_another_scales_needs_to_say_how_far(given: dict, named: str) -> None:
    with pytest.raises(BicepEvaluationError, match=named):
        expand(INFRA / "main.bicep", {**WORLDS["as it comes"], **given}, subscription=SUBSCRIPTION)


# Longest functionTimeout by kind of plan, in seconds; None where it is unbounded.
LONGEST: dict[str, float | None] = {"FlexConsumption": None, "ElasticPremium": None, "Dedicated": None}


@pytest.mark.parametrize("kind", KINDS)
def test_function_timeout_fits_the_plan_and_leaves_scaler_and_slice_their_deadlines(kind: str) -> None:
    timeout = timeout_of_functions()
    longest = LONGEST[kind]

    assert longest is None or timeout <= longest
    assert timeout > AppServicePlanScaler.Params(resource_id="").deadline_seconds
    assert timeout > read_slice({}) + read_config(settings()).shutdown


def test_the_functions_that_can_be_kept_warm_are_those_that_a_queue_or_a_hub_starts() -> None:
    source = (ROOT / "scaling/web/functions.py").read_text(encoding="utf-8")
    queued = set(re.findall(r"queue_trigger\((?:(?!def )[\s\S])*?async def (\w+)", source))
    warm = only("everything", SITE).properties["functionAppConfig"]["scaleAndConcurrency"]["alwaysReady"]
    cold = only("as it comes", SITE).properties["functionAppConfig"]["scaleAndConcurrency"]["alwaysReady"]

    assert queued
    assert {f"function:{name}" for name in queued | {"consume_events"}} == {each["name"] for each in warm}
    assert cold == []
    consumer = (ROOT / "consumer/web/functions.py").read_text(encoding="utf-8")
    assert "async def consume_events(" in consumer
