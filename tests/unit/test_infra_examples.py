"""What `azd up` deploys in the folders of examples/: made once, of types that Azure knows, and with what the scenario's settings name."""

import json
import re

import pytest
import yaml
from pycep import BicepParser

from scaling.config.policy_file import load_config
from scaling.service import registry
from tests.bicep_language import expand
from tests.support.infra.azure_types import problems
from tests.support.infra.templates import EXAMPLES, INFRA, OPERATOR, ROOT, SUBSCRIPTION, WORLDS

DEPLOYED = sorted(path.parent.name for path in (ROOT / "examples").glob("*/azure.yaml"))
VARIABLES = {
    "AZURE_ENV_NAME": "tried",
    "AZURE_LOCATION": "westeurope",
    "AZURE_PRINCIPAL_ID": OPERATOR,
    "PAYMENTS_SQL_URL": "mssql+pyodbc://client@server/payments",
}


@pytest.fixture(scope="module")
def deployments():
    found = {}
    for name in DEPLOYED:
        folder = ROOT / "examples" / name / "infra"
        text = (folder / "main.parameters.json").read_text()
        given = json.loads(re.sub(r"\$\{(\w+)\}", lambda match: VARIABLES[match[1]], text))["parameters"]
        values = {key: entry["value"] for key, entry in given.items()}
        found[name] = expand(folder / "main.bicep", values, subscription=SUBSCRIPTION)
    return found


def app_settings(deployment):
    (found,) = (
        each
        for each in deployment.of_type("Microsoft.Web/sites/config")
        if each.name.endswith("/appsettings")
    )
    return found.properties


def test_the_second_grammar_reads_every_file():
    assert [str(path) for path in EXAMPLES if not BicepParser().parse(text=path.read_text())] == []


@pytest.mark.parametrize("name", DEPLOYED)
def test_each_resource_is_made_once_and_is_what_its_type_and_version_know(deployments, name):
    made = deployments[name].resources
    ids = [each.id.lower() for each in made]
    found = [
        f"{each.file}: {problem}"
        for each in made
        for problem in problems(each.type, each.api_version, each.name.rpartition("/")[2], each.body)
    ]

    assert sorted(set(ids)) == sorted(ids)
    assert found == []


@pytest.mark.parametrize("name", DEPLOYED)
def test_azd_finds_its_templates_its_service_and_what_belongs_to_the_environment(deployments, name):
    folder = ROOT / "examples" / name
    project = yaml.safe_load((folder / "azure.yaml").read_text())
    tagged = {
        each.body["tags"].get("azd-service-name") for each in deployments[name].of_type("Microsoft.Web/sites")
    }
    groups = deployments[name].of_type("Microsoft.Resources/resourceGroups")

    assert (folder / project["infra"]["path"] / f"{project['infra']['module']}.bicep").is_file()
    assert set(project["services"]) == tagged
    assert all((folder / service["project"]).is_dir() for service in project["services"].values())
    assert {each.body["tags"]["azd-env-name"] for each in groups} == {"tried"}  # what `azd down` removes


@pytest.mark.parametrize("name", sorted({*DEPLOYED} - {"publishing_web_app"}))
def test_the_app_has_every_setting_that_the_scenarios_policy_names_and_the_policy_itself(deployments, name):
    settings = app_settings(deployments[name])
    path = settings["TIDEMARK_CONFIG"]
    ignored = (ROOT / ".funcignore").read_text().split()

    assert path == f"examples/{name}/tidemark.toml"
    text = (ROOT / path).read_text()
    assert load_config(text, name=path, settings=settings, plug_ins=registry)
    for connection in re.findall(r'^connection = "(\w+)"', text, re.MULTILINE):
        assert any(setting.startswith(f"{connection}__") for setting in settings), connection
    assert not {path, "examples", f"examples/{name}"} & {*ignored}


def test_the_web_app_takes_the_wheel_that_its_hook_builds():
    folder = ROOT / "examples" / "publishing_web_app"
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]

    assert f"./wheels/tidemark_azure-{version}-py3-none-any.whl[" in (folder / "requirements.txt").read_text()


def test_two_environments_share_nothing_but_a_role_of_the_same_words():
    made = []
    for name in ("tidemark-prod", "tidemark-test"):
        given = WORLDS["everything"] | {"environmentName": name}
        found = expand(INFRA / "main.bicep", given, subscription=SUBSCRIPTION)
        made.append({each.id.lower(): each for each in found.resources})
    shared = made[0].keys() & made[1].keys()

    assert {made[0][each].type for each in shared} == {
        "Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions"
    }
    assert [made[0][each].body == made[1][each].body for each in shared] == [True]
