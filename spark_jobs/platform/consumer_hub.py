"""The consumer whose events a job writes or judges: one hub with one container, from app settings or from a consumer's file.

Of a hub that several sinks are written from, a job is about one of them, whose writes alone are left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from msgspec import structs
from typer import Option

from consumer.config import FILE, ConsumerConfig, SinkKind, read_config
from consumer.decoding.table import DecoderContext, build_decoder
from consumer.definition.loading import find_hub, load_definition
from consumer.definition.model import HubDefinition, SinkDefinition, digest_of
from consumer.formats import DecoderName, Unpack, registry_of
from consumer.options import WritingTexts
from consumer.running.assembly import Parts, sink_table
from consumer.sinks.cosmos.options import CosmosOptions
from spark_jobs.platform.user_code import code_digest
from tidemark.analysis.errors import InputError, job_errors
from tidemark.foundation.azure.cosmos import cosmos_endpoint

HubName = Annotated[str | None, Option("--hub", help="A hub of CONSUMER_FILE; needed if it has several.")]
SinkName = Annotated[
    str | None,
    Option("--sink", help="A sink of the hub to Cosmos DB; needed if CONSUMER_FILE has several for it."),
]

_BY_BODY = {
    *(DecoderName.JSON, DecoderName.PROTOBUF, DecoderName.TEXT, DecoderName.RAW),
    *(DecoderName.AVRO_SINGLE_OBJECT, DecoderName.AVRO_PREAMBLE, DecoderName.CONFLUENT),
    *(DecoderName.CSV, DecoderName.AVRO_FILE),
}
"""Formats whose body alone says how it is read: captured files lack content type and encoding."""

_IDENTITY = ("IDENTITY_ENDPOINT", "IDENTITY_HEADER")
"""The local stack has them in its settings. Those of a platform are in the environment, and lead to the machine whose they are."""

_PREFIXES = ("EVENTHUB_", "COSMOS_", "CONSUMER_", "ALLOW_", "BLOB_", "TIDEMARK_")


def has_other_sinks(hub: HubDefinition) -> bool:
    return hub.mapper is not None and hub.mapper.only is not None


def hub_on_cosmos(
    settings: Mapping[str, str], job: str, *, hub: str | None = None, sink: str | None = None
) -> HubDefinition:
    """The hub with the one sink that the job is about, which is none where app settings describe it. `job` is "a backfill writes to".

    Raises InputError for a hub that cannot be distinguished from others or cannot be read here, and for one without a sink to Cosmos DB.
    """
    if not settings.get(FILE, "").strip():
        return _of_settings(settings, job, hub=hub, sink=sink)
    with job_errors():
        definition = find_hub(load_definition(settings), hub)
    chosen = _cosmos_sink(definition, job, sink)
    if definition.mapper is not None and len(definition.sinks) > 1:
        definition = structs.replace(definition, mapper=definition.mapper.only_into(chosen.name))
    definition = structs.replace(definition, sinks=(chosen,), settings=_as_settings(definition, chosen))
    _check_format(definition, f"the format of the hub '{definition.name}'")
    return definition


def _of_settings(
    settings: Mapping[str, str], job: str, *, hub: str | None, sink: str | None
) -> HubDefinition:
    for option, name in (("--hub", hub), ("--sink", sink)):
        if name is not None:
            raise InputError(f"{option} is '{name}', and {FILE} is not set; it names one of that file")
    with job_errors():
        config = read_config(settings)
    if config.sink is not SinkKind.COSMOS:
        raise InputError(f"CONSUMER_SINK is {config.sink}; {job} Cosmos DB: cosmos")
    definition = HubDefinition(config, settings)
    _check_format(definition, "CONSUMER_DECODER")
    return definition


def _cosmos_sink(hub: HubDefinition, job: str, name: str | None) -> SinkDefinition:
    into = {sink.name: sink for sink in hub.sinks if sink.type == SinkKind.COSMOS}
    if name is None and len(into) == 1:
        return next(iter(into.values()))
    if name in into:
        return into[name]
    if not into:
        types = ", ".join(f"{sink.name} ({sink.type})" for sink in hub.sinks)
        raise InputError(f"the hub '{hub.name}' has the sinks {types}; {job} one of the type cosmos")
    problem = "is missing" if name is None else f"is '{name}'"
    raise InputError(
        f"--sink {problem}; accepted, of the hub '{hub.name}' into Cosmos DB: {', '.join(sorted(into))}"
    )


def _check_format(hub: HubDefinition, what: str) -> None:
    config = hub.config
    if config.decoder not in _BY_BODY or config.decode.unpack is Unpack.AUTO:
        raise InputError(
            f"{what} is {config.decoder} and CONSUMER_UNPACK {config.decode.unpack}; the Spark jobs read"
            f" {', '.join(sorted(_BY_BODY))}, with CONSUMER_UNPACK none, gzip or zstd: captured files have neither content type nor"
            " content encoding. Give the job the settings with which the bodies of this hub are read alike, or leave this hub out"
        )
    with job_errors():
        build_decoder(
            config.decoder, config.decode, DecoderContext(hub.settings)
        )  # files and packages are there


def _as_settings(hub: HubDefinition, sink: SinkDefinition) -> dict[str, str]:
    """The hub's settings for who reads them without the file: stores are where the file has them."""
    of_hub = {name: value for name, value in hub.settings.items() if name not in {FILE, "CONSUMER_SINK"}}
    where = {"COSMOS_DATABASE": sink.options.database, "COSMOS_CONTAINER": sink.options.container}
    return {**where, **of_hub}


def cosmos_options(hub: HubDefinition) -> CosmosOptions:
    """Where the documents are, and how they are written."""
    if hub.sinks:
        options: CosmosOptions = hub.sinks[0].options
        return options
    with job_errors():
        return CosmosOptions(**sink_table(hub.config))


FACTS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "hub": ("hub", str.lower),
    "topic": ("hub", str.lower),
    "account": ("account", str.lower),
    "target": ("container", str),  # Cosmos DB has "a" beside "A"
}
"""Of `run_facts` about where events come from and go to: what each is, and what of its text distinguishes it."""

MADE_BY = {
    "mapping": "transform, steps and routes",
    "writing": "options of writing, such as the id",
    "bodies": "options of decoding",
    "code": "the code of the transform",
    "schemas": "the files of schemas",
}
"""Of `run_facts` about how documents are made, as digests: what each is of. By other ones other events are missing."""


def run_facts(hub: HubDefinition) -> dict[str, str]:
    """Of a job about the hub: two hubs of a file may have one name, in two namespaces, and one hub several containers."""
    options, config = cosmos_options(hub), hub.config
    with job_errors():
        account = cosmos_endpoint(hub.settings, options.connection).url
    writing = [getattr(options, name) for name in ("id", "meta", *WritingTexts.__struct_fields__)]
    return {
        **code_facts(config),
        "hub": config.hub,
        "topic": Parts(config, hub.settings).stream.topic,
        "account": account,
        "target": f"{options.database}/{options.container}",
        "mapping": digest_of(
            config.transform, config.policy.routes, hub.sinks[0].name if has_other_sinks(hub) else ""
        ),
        "writing": digest_of(*writing),
        "bodies": digest_of(config.decoder, structs.asdict(config.decode)),
    }


def code_facts(config: ConsumerConfig) -> dict[str, str]:
    """What settings only name: the code of the transform, and the files of schemas. Without what there is none of, or what cannot be
    told.
    """
    code = code_digest(config.transform) if config.transform else ""
    files: tuple[str, ...] = getattr(config.decode, "files", ())
    schemas = digest_of(*(Path(path).read_bytes().hex() for path in files)) if files else ""
    return {name: digest for name, digest in (("code", code), ("schemas", schemas)) if digest}


def for_executors(hub: HubDefinition) -> dict[str, str]:
    """The settings that a task needs, and no others: connections are secrets, and the environment has more of them."""
    config = hub.config
    connections = [config.hub_connection, cosmos_options(hub).connection, config.storage_connection]
    connections.append(config.cosmos_connection)  # dead letters may be there
    if registry := registry_of(config.decode):
        connections.append(registry)
    return {
        name: value
        for name, value in hub.settings.items()
        if name.upper().startswith(_PREFIXES)
        or (name in _IDENTITY and value != os.environ.get(name))
        or any(
            name.lower() == connection.lower()
            or name.lower().startswith((f"{connection}__".lower(), f"{connection}:".lower()))
            for connection in connections
        )
    }
