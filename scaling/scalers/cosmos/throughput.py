"""What is known of Cosmos DB throughput without asking: ids, steps and limits."""

from __future__ import annotations

from math import ceil
from urllib.parse import quote

from msgspec import Struct

from scaling.resource_id import ResourceId

PARTITION_MAXIMUM = 10_000
"""RU/s one physical partition carries; up to that many times partitions, an increase is instant."""

_TYPE = "Microsoft.DocumentDB/databaseAccounts/sqlDatabases"
_EXAMPLE = (
    "/subscriptions/<guid>/resourceGroups/<group>/providers/Microsoft.DocumentDB/databaseAccounts/<account>"
    "/sqlDatabases/<database>/containers/<container> (without /containers/... for a database's throughput)"
)


class ThroughputId(Struct, frozen=True):
    """Whose throughput it is, as a resource of Resource Manager; `container` None for a database's."""

    subscription: str
    resource_group: str
    account: str
    database: str
    container: str | None = None

    @classmethod
    def parse(cls, text: str) -> ThroughputId:
        """Raises ValueError naming what was found and what is accepted."""
        resource = ResourceId.parse(text, example=_EXAMPLE, odd_names=True)
        resource.require(_TYPE, f"{_TYPE}/containers", example=_EXAMPLE)
        account, database, container = (*(name for _, name in resource.parts), None)[:3]
        return cls(resource.subscription, resource.group, str(account), str(database), container)

    @property
    def quoted(self) -> str:
        """As the path of a request: names of databases and containers may hold spaces and whatever else."""
        names = (self.subscription, self.resource_group, self.account, self.database, self.container or "")
        subscription, group, account, database, container = (quote(name, safe="") for name in names)
        path = (
            f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.DocumentDB"
            f"/databaseAccounts/{account}/sqlDatabases/{database}"
        )
        return f"{path}/containers/{container}" if container else path


def label_of(account: str, database: str, container: str | None) -> str:
    """How messages name it, for example `container 'flights' of database 'demo' (account tidemark)`."""
    where = f"database '{database}' (account {account})"
    return (
        f"throughput of {where}" if container is None else f"throughput of container '{container}' of {where}"
    )


class Throughput(Struct, frozen=True):
    """One reading, in RU/s: what is provisioned, or the maximum of autoscale.

    `instant` is the most that takes effect without splitting partitions, `maximum` the most that may be
    asked for; None if it is not known. `target` is the throughput after a pending replacement.
    """

    value: int
    autoscale: bool
    floor: int
    instant: int | None = None
    maximum: int | None = None
    pending: bool = False
    target: int | None = None
    unknown_state: str = ""

    @property
    def effective(self) -> int:
        """What may be spent for sure: a replacement that is pending on a split has no effect before it."""
        return self.value if self.instant is None or not self.pending else min(self.value, self.instant)

    @property
    def step(self) -> int:
        """Autoscale maxima are multiples of 1,000 RU/s, manual throughput of 100."""
        return 1000 if self.autoscale else 100

    def ceiling(self, *, allow_split: bool) -> int | None:
        """The most to ask for. What is provisioned already is never above it."""
        if allow_split or self.instant is None:
            return self.maximum
        limit = self.instant if self.maximum is None else min(self.instant, self.maximum)
        return max(limit, self.value)

    def stepped(self, wanted: int) -> int:
        """`wanted` rounded up to a whole step: too little is throttled, too much costs a step."""
        return ceil(wanted / self.step) * self.step


def absolute_minimum(*, autoscale: bool) -> int:
    """The least throughput of any container, for an answer without its own minimum."""
    return 1000 if autoscale else 400


def instant_at_least(value: int) -> int:
    """What is instant for sure where the partitions are not known: `value` needs that many already."""
    return max(ceil(value / PARTITION_MAXIMUM), 1) * PARTITION_MAXIMUM
