"""Sets a whole number in a resource of Resource Manager, of a kind that is known or one described by the configuration.

A change is a PATCH of the number, or a PUT of the document as it was read, which the resource's ETag guards where it has
one. Its operation is followed to the end: what takes longer than the deadline is accepted, and the checks find its effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, Unpack

import msgspec
from azure.core.exceptions import HttpResponseError
from msgspec import structs

from scaling.model import Capacity
from scaling.resource_id import ResourceId
from scaling.scalers.arm.errors import Failure
from scaling.scalers.arm.shared import ArmAccess, Place, UsesArm
from scaling.scalers.carrying_out import Carrier, Clock, Order, TargetRefusedError, advice
from scaling.scalers.resource.kinds import KINDS, Kind
from scaling.scalers.resource.resource import Seen, at, changed, seen_of, why_refused
from scaling.target_facts import TargetFacts

Version = Annotated[str, msgspec.Meta(pattern=r"^(\d{4}-\d{2}-\d{2}(-preview)?)?$")]
Path = Annotated[str, msgspec.Meta(pattern=r"^(\w+(\.\w+)*)?$")]
Value = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


NO_SUCH_INSTANCE = "not an active virtual machine scale set vm instanceid"
"""Of a refusal to delete an instance that is gone, or never was (microsoft/onefuzz#1946)."""


class ResourceScaler(UsesArm, Carrier[Seen]):
    """The scaler of one number of one resource, as `kind` describes it."""

    def __init__(
        self,
        resource: ResourceId,
        kind: Kind,
        settings: Mapping[str, str],
        *,
        label: str,
        deadline: float,
        poll_interval: float,
        **clock: Unpack[Clock],
    ) -> None:
        super().__init__(label, kind.unit, deadline=deadline, poll_interval=poll_interval, **clock)
        self._id = resource
        self._kind = kind
        self.endpoint = f"Resource Manager, subscription {resource.subscription}"
        self._place = Place(str(resource), kind.type, kind.list_query)
        self._use(ArmAccess(settings))
        self._last: int | None = None
        self._removes = False

    async def current(self, target: str, *, now: float) -> Capacity:  # one number per scaler
        """Raises TargetRefusedError where there is nothing to set, ScalerError when it cannot be read."""
        seen = await self._bounded(self._listed(now))
        return Capacity(
            current=seen.value,
            at=now,
            floor=seen.floor,
            ceiling=seen.ceiling,
            ready=seen.ready,
            pending=seen.pending,
            held_by=seen.holder or await self._arm.holder(str(self._id), now),
            step=seen.settable.step,
            allowed=seen.settable.allowed,
            unknown_state=seen.unknown_state,
        )

    async def _listed(self, now: float) -> Seen:
        """The resource in the list of its type. A list may be behind, or lack a property: then, and if it shows another
        number than before, the resource itself is read.
        """
        kind, known = self._kind, self._last
        document = await self._arm.document(self._place, kind.api_version, now)
        if document is not None and at(document, kind.path) is not None:
            with suppress(ValueError, TargetRefusedError):
                seen = self._seen(document)
                if known in {None, seen.value}:
                    return seen
        return await self._ask(now)

    async def _ask(self, now: float) -> Seen:
        client = await self._arm.resources.get()
        return self._seen(await client.get(str(self._id), self._kind.api_version))

    def _seen(self, document: Mapping[str, Any]) -> Seen:
        refusal = self._why_refused(document)
        if refusal is not None:
            raise TargetRefusedError(f"{self._label} cannot be set: {refusal}")
        seen = self._seen_of(document)
        self._last = seen.value
        return seen

    def _why_refused(self, document: Mapping[str, Any]) -> str | None:
        return why_refused(self._kind, document)

    def _seen_of(self, document: Mapping[str, Any]) -> Seen:
        return seen_of(self._kind, document)

    def _advice(self, failure: Failure, *, to_write: bool = True) -> str:
        rights = ["read", "write", *([f"{self._kind.removal}/action"] if self._removes else [])]
        role = f"the identity needs a role with {' and '.join(f'{self._kind.type}/{right}' for right in rights)} on it"
        return advice(failure, refused=role, absent="; check resource_id and the identity's access")

    async def _held_by(self, seen: Seen, now: float) -> str | None:
        holder = seen.holder or await self._arm.holder(str(self._id), now, age=0.0)
        return None if holder is None else f"'{holder}' moves this resource"

    def _clamped(self, order: Order, seen: Seen) -> int:
        there, wanted = order.action.to_capacity, seen.clamped(order.action.to_capacity)
        if wanted != there:
            bounds = f"{seen.floor} to {'any' if seen.ceiling is None else seen.ceiling}"
            order.limit = f"the platform takes {bounds} {self._unit}, {seen.settable.words}"
        return wanted

    async def _request(self, order: Order, seen: Seen, wanted: int) -> None:
        kind, client = self._kind, await self._arm.resources.get()
        named = order.action.instances
        if named and kind.removal and wanted == order.action.to_capacity == seen.value - len(named):
            return await self._remove(order, named)
        etag = seen.etag if kind.method == "put" else ""
        document = changed(kind, seen, wanted)
        operation = await client.change(
            kind.method.upper(), str(self._id), kind.api_version, document, etag=etag
        )
        order.accepted = True
        return await client.finish(operation, self._poll_interval, self._sleep)

    async def _remove(self, order: Order, named: tuple[str, ...]) -> None:
        """Removes these instances. A repeat names the same ones; that they are gone already is no refusal, and is read back."""
        kind, client = self._kind, await self._arm.resources.get()
        path, document = f"{self._id}/{kind.removal}", {"instanceIds": list(named)}
        try:
            operation = await client.change("POST", path, kind.api_version, document)
        except HttpResponseError as error:
            order.accepted = NO_SUCH_INSTANCE in str(error).casefold()
            raise
        order.accepted = True
        await client.finish(operation, self._poll_interval, self._sleep)


class AzureResourceScaler(ResourceScaler):
    """The scaler of a kind that is known, or of a resource that the configuration describes."""

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """Either `kind`, which knows the rest, or `api_version` and `path` (`properties.count`) of any resource, which is
        set by `method`, to multiples of `step` or to `allowed` values, from `least` to `most`, and counts in `unit`.

        With a kind, `api_version`, `allowed` and `most` replace its own. With `remove_acknowledged` a scale-in removes the
        instances whose ids workers have acknowledged a drain notice with. `deadline_seconds` bounds one delivery of an action;
        `poll_interval_seconds` counts where the platform does not say when to ask again.
        """

        resource_id: str
        kind: str = ""
        api_version: Version = ""
        path: Path = ""
        method: Literal["", "patch", "put"] = ""
        step: Annotated[int, msgspec.Meta(ge=1)] = 1
        allowed: tuple[Value, ...] = ()
        least: Value = 0
        most: Value | None = None
        unit: Annotated[str, msgspec.Meta(max_length=40)] = ""
        remove_acknowledged: bool = False
        deadline_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
        poll_interval_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0

        def problems(self) -> dict[str, str]:
            problems: dict[str, str] = {}
            try:
                type_ = ResourceId.parse(self.resource_id).type
            except ValueError as error:
                return {"resource_id": str(error)}
            kind = KINDS.get(self.kind)
            if self.kind and kind is None:
                return {"kind": f"found '{self.kind}'; accepted are {', '.join(KINDS)}"}
            if kind is not None:
                if type_.casefold() != kind.type.casefold():
                    problems["resource_id"] = (
                        f"found a resource of type {type_}; '{self.kind}' is of {kind.type}"
                    )
                given = {
                    "path": self.path,
                    "method": self.method,
                    "unit": self.unit,
                    "least": self.least,
                }
                fixed = [name for name, value in given.items() if value]
                if self.remove_acknowledged and not kind.removal:
                    problems["remove_acknowledged"] = f"the platform chooses which of the {kind.unit} go"
                return {**problems, **dict.fromkeys(fixed, f"is known of the kind '{self.kind}'")}
            text = "is missing; give kind, or api_version and path"
            problems = {name: text for name in ("api_version", "path") if not getattr(self, name)}
            if self.remove_acknowledged:
                problems["remove_acknowledged"] = "is for kinds that remove instances by their ids; give kind"
            if self.allowed and self.step > 1:
                problems["step"] = "give either allowed values or a step"
            return problems

        @property
        def known(self) -> Kind:
            """The kind, with the values of the configuration. Raises ValueError for a bad resource id."""
            allowed = tuple(sorted(set(self.allowed)))
            if (kind := KINDS.get(self.kind)) is not None:
                given = {"api_version": self.api_version, "ceiling": self.most}
                kind = structs.replace(kind, **{name: value for name, value in given.items() if value})
                return structs.replace(kind, allowed=allowed, times="") if allowed else kind
            return Kind(
                type=ResourceId.parse(self.resource_id).type,
                api_version=self.api_version,
                path=self.path,
                unit=self.unit or "units",
                method=self.method or "patch",
                floor=self.least,
                ceiling=self.most,
                step=self.step,
                allowed=allowed,
            )

    def __init__(self, params: Params, settings: Mapping[str, str], **clock: Unpack[Clock]) -> None:
        """Raises ValueError for a malformed resource id."""
        resource, kind = ResourceId.parse(params.resource_id), params.known
        super().__init__(
            resource,
            kind,
            settings,
            label=f"{kind.unit} of '{resource.name}'",
            deadline=params.deadline_seconds,
            poll_interval=params.poll_interval_seconds,
            **clock,
        )
        self._removes = params.remove_acknowledged

    @staticmethod
    def facts(params: Params) -> TargetFacts:
        return structs.replace(params.known.facts, removes_named=params.remove_acknowledged)

    @staticmethod
    def resource(params: Params, settings: Mapping[str, str]) -> str:  # the id says it all
        """What is scaled: two targets must not have the same. Raises ValueError."""
        return f"{ResourceId.parse(params.resource_id)} {params.known.path}".casefold()
