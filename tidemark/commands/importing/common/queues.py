"""Connections of imported metrics: by their namespace or account where that is known, else by an app setting to fill in. Pure."""

from __future__ import annotations

import re
from typing import Any

from scaling.resource_id import ResourceId
from tidemark.commands.importing.common.imported import Imported, setting_name

STORAGE = "AzureWebJobsStorage"
"""Where this app keeps its own state."""

BUS = "fullyQualifiedNamespace"
QUEUES = "queueServiceUri"
BLOBS = "blobServiceUri"
HOSTS = {BUS: "servicebus.windows.net", QUEUES: "queue.core.windows.net", BLOBS: "blob.core.windows.net"}
"""What a host of the public cloud ends with."""


def add_identity_connection(made: Imported, kind: str, host: str, suffix: str = "") -> str:
    """The name of a connection by the app's identity; `kind` is one of HOSTS, `host` a namespace, an account, or its host, which ends
    with `suffix` in another cloud.
    """
    whole = host if "." in host else f"{host}.{suffix or HOSTS[kind]}"
    value = whole if kind == BUS else f"https://{whole}/"
    return made.setting(setting_name(host.partition(".")[0]), value, value, suffix=f"__{kind}")


def add_setting(made: Imported, name: str, what: str, stands_for: str) -> str:
    """The name of an app setting that its owner has to fill in; one that stands for the same has the same name."""
    return made.setting(setting_name(name), stands_for, what)


def add_variable(made: Imported, name: str, what: str) -> str:
    """The name of an app setting for an environment variable of the workload, which other workloads may have with another value."""
    if name == STORAGE or not re.fullmatch(r"[A-Za-z]\w{0,79}", name, re.ASCII):
        own = made.setting(setting_name(made.name, name), f"{made.source} {name}", f"{what}, there {name}")
        if name == STORAGE:
            made.note(
                f"{name} of the workload",
                f"this app keeps its own state in {name}, so the app setting {own} takes its place",
            )
        return own
    other = made.meant.setdefault(name, made.source)
    if other != made.source:
        made.note(
            f"the app setting {name}",
            f"{other} reads a variable of this name, too, and this app has one of it: where the two differ, name another one here",
        )
    made.settings[name] = what
    return name


def full_id(text: str) -> str:
    """A resource id as it stands; empty for anything else."""
    try:
        ResourceId.parse(text)
    except ValueError:
        return ""
    return text


def queue_of(uri: str, made: Imported) -> dict[str, Any] | None:
    """The collector of a queue's length, if a URI names a queue."""
    try:
        resource = ResourceId.parse(uri)
    except ValueError:
        return None
    kinds = "/".join(kind.casefold() for kind, _ in resource.parts)
    service = (resource.provider.casefold(), kinds)
    owner = resource.parts[0][1]
    if service == ("microsoft.servicebus", "namespaces/queues"):
        return {
            "collector": "service_bus_queue",
            "connection": add_identity_connection(made, BUS, owner),
            "queue": resource.name,
        }
    if service == ("microsoft.storage", "storageaccounts/services/queues"):
        return {
            "collector": "storage_queue",
            "connection": add_identity_connection(made, QUEUES, owner),
            "queue": resource.name,
        }
    return None
