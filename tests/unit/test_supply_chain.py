"""Workflows, Dependabot and bills of materials: what they name is there, and nothing in them can be moved from outside."""

import json
import re
from pathlib import Path

import pytest
import yaml

from devstack.setup import sbom

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LOCK = """\
Azure_Core==1.41.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:cc
"""


def texts():
    return {path.name: path.read_text(encoding="utf-8") for path in WORKFLOWS}


def test_actions_are_named_by_commit_and_say_their_release():
    uses = [each for text in texts().values() for each in re.findall(r"uses: (.+)", text)]

    assert uses
    assert [
        each for each in uses if not re.fullmatch(r"\./\S+|[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)
    ] == []


def test_one_action_has_one_commit():
    pinned = {}
    for text in texts().values():
        for name, commit in re.findall(r"uses: ([\w-]+/[\w-]+)@(\w+)", text):
            pinned.setdefault(name, set()).add(commit)

    assert {name: commits for name, commits in pinned.items() if len(commits) > 1} == {}


def test_a_workflow_may_read_only_and_leaves_no_credentials_behind():
    for name, text in texts().items():
        assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE), name
        assert text.count("actions/checkout@") == text.count("persist-credentials: false"), name
        assert "secrets." not in text, name
        assert "pull_request_target" not in text, name


def test_what_somebody_else_wrote_is_no_part_of_a_command():
    """Titles and names of branches in a script would be run."""
    for name, text in texts().items():
        for line in text.splitlines():
            if re.match(r"\s*(- )?run:", line):
                assert "${{" not in line, name


def test_the_workflows_run_what_there_is():
    text = "".join(texts().values())
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert "bash .ci/run" in text
    for words in re.findall(r"run: make ([a-z -]+)", text):
        assert set(words.split()) <= set(targets)
    for path in re.findall(r"(?:--file|dockerfile:) ([\w./-]+)", text):
        assert (ROOT / path).is_file()
    assert (ROOT / re.search(r"uses: \./(\S+)", text)[1]).is_file()
    project = (ROOT / "pyproject.toml").read_text()
    low, high = re.search(r'requires-python = ">=(3\.\d+),<3\.(\d+)"', project).groups()
    assert f'python: ["{low}", "3.{int(high) - 1}"]' in text


JOBS = [
    (path.name, name, job)
    for path in WORKFLOWS
    for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items()
]
MAY = {  # what a job may besides reading the repository
    ("publish.yml", "deploy"): {"id-token"},
    ("release.yml", "distributions"): {"id-token", "attestations"},
    ("release.yml", "pypi"): {"id-token"},
    ("release.yml", "push"): {"id-token", "attestations", "packages"},
    ("release.yml", "page"): {"contents"},
}


def test_each_job_may_write_what_it_has_to_and_nothing_else():
    allowed = {
        (file, name): {what for what, right in job.get("permissions", {}).items() if right == "write"}
        for file, name, job in JOBS
    }

    assert {key: rights for key, rights in allowed.items() if rights} == MAY


def test_the_job_that_pypi_trusts_runs_no_code_of_ours_and_takes_what_was_signed():
    jobs = {name: job for file, name, job in JOBS if file == "release.yml"}
    pypi, made = jobs["pypi"], jobs["distributions"]
    uses = [step.get("uses", "").partition("@")[0] for step in pypi["steps"]]
    (signed,) = (
        step["with"]["subject-path"].split() for step in made["steps"] if "attest" in step.get("uses", "")
    )

    assert pypi["environment"] == "pypi"
    assert uses == ["actions/download-artifact", "", "pypa/gh-action-pypi-publish"]
    assert {"dist/*.whl", "dist/*.tar.gz"} <= set(signed)


PUBLISHES = re.compile(r"gh-action-pypi-publish|docker push|gh release create")


def test_a_release_is_built_whole_then_approved_once_and_only_then_published():
    jobs = {name: job for file, name, job in JOBS if file == "release.yml"}

    def before(name):
        needs = jobs[name].get("needs", [])
        needs = [needs] if isinstance(needs, str) else needs
        return {*needs}.union(*map(before, needs))

    published = {name for name, job in jobs.items() if PUBLISHES.search(str(job.get("steps", "")))}

    assert [name for name, job in jobs.items() if "environment" in job] == ["pypi"]
    assert published == {"pypi", "push", "page"}
    assert before("pypi") == {*jobs} - published
    assert [name for name in published - {"pypi"} if "pypi" not in before(name)] == []
    assert [name for name in jobs if name != "tag" and "tag" not in before(name)] == []
    checks = " ".join(step.get("run", "") for step in jobs["tag"]["steps"])
    assert "GITHUB_REF_NAME#v" in checks
    assert "merge-base --is-ancestor HEAD origin/main" in checks
    assert jobs["tag"]["steps"][0]["with"]["fetch-depth"] == 0


def test_each_image_that_is_published_has_a_bill_of_its_own():
    built, pushed = (
        {image["image"]: image for image in job["strategy"]["matrix"]["include"]}
        for file, name, job in JOBS
        if (file, name) in {("release.yml", "images"), ("release.yml", "push")}
    )

    assert [*built] == [*pushed]
    for name, image in built.items():
        assert (ROOT / image["dockerfile"]).is_file()
        bill = pushed[name]["bill"]
        assert sbom.DEPLOYED[bill] in (ROOT / image["dockerfile"]).read_text()


def test_what_is_deployed_is_told_by_the_variables_that_the_templates_take():
    """One that is left out would be set back to its default by a deployment from here."""
    text = texts()["publish.yml"]
    given = set(re.findall(r"^      (\w+): \$\{\{ vars\.(\w+) \}\}$", text, re.MULTILINE))
    taken = set(re.findall(r"\$\{(\w+)", (ROOT / "infra/main.parameters.json").read_text()))

    assert all(name == variable for name, variable in given)
    assert {name for name, _ in given} == taken | {
        "AZURE_CLIENT_ID",
        "AZURE_TENANT_ID",
        "AZURE_SUBSCRIPTION_ID",
    }


def test_dependabot_looks_where_there_is_something_to_see():
    text = (ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8")
    found = re.findall(r"package-ecosystem: ([\w-]+)\n    directory: (\S+)", text)
    files = {
        "pip": "requirements.txt",
        "npm": "package-lock.json",
        "docker": "Dockerfile",
        "github-actions": ".github",
    }

    assert {ecosystem for ecosystem, _ in found} == set(files)
    for ecosystem, directory in found:
        assert (ROOT / directory.lstrip("/") / files[ecosystem]).exists(), directory


# -- bills of materials ------------------------------------------------------------------------------------


def test_a_bill_names_every_package_with_its_hashes():
    made = sbom.document(LOCK, "tidemark-functions", "1.2.3")

    assert made["components"] == [
        {
            "type": "library",
            "bom-ref": "pkg:pypi/azure-core@1.41.0",
            "name": "Azure_Core",
            "version": "1.41.0",
            "purl": "pkg:pypi/azure-core@1.41.0",
            "hashes": [{"alg": "SHA-256", "content": "aa"}, {"alg": "SHA-256", "content": "bb"}],
        },
        {
            "type": "library",
            "bom-ref": "pkg:pypi/colorama@0.4.6",
            "name": "colorama",
            "version": "0.4.6",
            "purl": "pkg:pypi/colorama@0.4.6",
            "hashes": [{"alg": "SHA-256", "content": "cc"}],
            "properties": [{"name": "tidemark:marker", "value": "sys_platform == 'win32'"}],
        },
    ]
    assert made["metadata"]["component"]["version"] == "1.2.3"
    assert made["dependencies"][0]["dependsOn"] == [each["bom-ref"] for each in made["components"]]


def test_the_same_lock_gives_the_same_bill_and_another_one_another():
    again = sbom.document(LOCK, "a", "1")

    assert sbom.document(LOCK, "a", "1") == again
    assert sbom.document(LOCK.replace("aa", "dd"), "a", "1")["serialNumber"] != again["serialNumber"]


@pytest.mark.parametrize(
    "lock", ["azure-core>=1", "-r other.txt", "azure-core==1 \\\n    --hash=md5:aa", "azure-core @ file:///x"]
)
def test_what_is_no_lock_is_refused(lock):
    with pytest.raises(ValueError, match="make lock"):
        sbom.document(lock, "a", "1")


def test_the_bills_of_what_is_deployed(tmp_path, capsys):
    sbom.main(tmp_path / "dist")

    for name, lock in sbom.DEPLOYED.items():
        made = json.loads((tmp_path / "dist" / f"{name}.cdx.json").read_text())
        assert len(made["components"]) == len(
            re.findall(r"^[\w.-]+==", (ROOT / lock).read_text(), re.MULTILINE)
        )
        assert len({each["bom-ref"] for each in made["components"]}) == len(made["components"])
        assert all(each["hashes"] for each in made["components"])
    assert capsys.readouterr().out.count("packages") == len(sbom.DEPLOYED)
