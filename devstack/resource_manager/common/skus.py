"""The sizes of App Service Plans and how many instances each may have.

Maxima are those of the published App Service limits (Basic 3, Standard 10, Premium v1 20,
Premium v2 and v3 30, Isolated 100). The elastic ones are here so that clients can be seen to
refuse them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sku:
    name: str
    tier: str
    family: str
    maximum: int
    is_elastic: bool = False


def _family(tier: str, family: str, maximum: int, names: str, *, is_elastic: bool = False) -> list[Sku]:
    return [Sku(name, tier, family, maximum, is_elastic) for name in names.split()]


_ALL = [
    *_family("Free", "F", 1, "F1"),
    *_family("Shared", "D", 1, "D1"),
    *_family("Basic", "B", 3, "B1 B2 B3"),
    *_family("Standard", "S", 10, "S1 S2 S3"),
    *_family("Premium", "P", 20, "P1 P2 P3"),
    *_family("PremiumV2", "Pv2", 30, "P1v2 P2v2 P3v2"),
    *_family("PremiumV3", "Pv3", 30, "P0v3 P1v3 P2v3 P3v3"),
    *_family("PremiumMV3", "Pmv3", 30, "P1mv3 P2mv3 P3mv3 P4mv3 P5mv3"),
    *_family("IsolatedV2", "Iv2", 100, "I1v2 I2v2 I3v2"),
    *_family("ElasticPremium", "EP", 20, "EP1 EP2 EP3", is_elastic=True),
    *_family("FlexConsumption", "FC", 1000, "FC1", is_elastic=True),
]

SKUS: dict[str, Sku] = {sku.name.lower(): sku for sku in _ALL}


def find_sku(name: str) -> Sku:
    """The SKU of this name, whatever its case.

    Raises ValueError that lists the accepted names.
    """
    try:
        return SKUS[name.lower()]
    except KeyError:
        raise ValueError(f"unknown SKU {name!r}, accepted: {', '.join(sku.name for sku in _ALL)}") from None


def selectable(sku: Sku) -> list[Sku]:
    """The SKUs a plan of this size can move to without leaving its kind of hosting."""
    isolated = sku.tier.startswith("Isolated")
    return [
        other
        for other in _ALL
        if other.is_elastic == sku.is_elastic
        and other.tier.startswith("Isolated") == isolated
        and (other.tier == sku.tier or not sku.is_elastic)
    ]
