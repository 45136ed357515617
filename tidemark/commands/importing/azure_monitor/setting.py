"""An Azure Monitor autoscale setting as a target: its profiles as bounds by the clock, its rules, cooldowns and notifications. Pure.

It reads what `az monitor autoscale show` or `list` gives, and the resources of a template.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tidemark.commands.importing.azure_monitor.conditions import Condition, read_conditions, rules_of
from tidemark.commands.importing.azure_monitor.profiles import Profile, read_profile, schedules
from tidemark.commands.importing.common.given import Given, UnreadableError
from tidemark.commands.importing.common.imported import AT_ZERO, Imported, span_text

TYPE = "microsoft.insights/autoscalesettings"


def is_autoscale(given: Given) -> bool:
    """Whether an object is an autoscale setting, in any of the forms that Azure's tools write."""
    if given.raw("type").casefold() == TYPE:
        return True
    return not given.has("apiVersion") and (given.at("properties") if given.has("properties") else given).has(
        "profiles"
    )


def read_autoscale_setting(given: Given, meant: dict[str, str]) -> Imported:
    """`meant` is what the app settings of the run stand for. Raises UnreadableError."""
    body = given.at("properties") if given.has("properties") else given
    names = [name for part in (given, body) if (name := part.raw("name"))]
    name = next((name for name in names if not name.startswith("[")), "autoscale")
    made = Imported(name.rpartition("/")[2], f"Autoscale setting {name}", meant=meant)
    resource = body.raw("targetResourceUri")
    made.scaled_by(resource, _unknown_resource(resource))
    profiles = [read_profile(profile, made) for profile in body.tables("profiles")]
    if not profiles:
        raise UnreadableError(f"{body.path}.profiles: found none; an autoscale setting has at least one")
    _bounds(profiles, made)
    if not body.flag("enabled", default=False):
        made.table["dry_run"] = True
        made.note(
            "enabled", "the setting is switched off, so the target is in dry-run; take dry_run away to use it"
        )
    else:
        made.note(
            "the setting itself",
            "while it is enabled on the resource Tidemark holds; switch it off when you begin (az monitor autoscale update --enabled false)",
        )
    ruled = _ruled(profiles, made)
    conditions = read_conditions(ruled.rules, resource, made) if ruled is not None else []
    if conditions:
        _cooldowns(conditions, made)
        made.rules += rules_of(conditions, made)
    made.rules += schedules(profiles, made)
    if not made.rules:
        made.rules.append({"type": "composite", "desired": "instances"})
        made.note("rules", "there are none, so the target only keeps within its bounds")
    _others(body, made)
    return made


def _unknown_resource(resource: str) -> str:
    if resource.startswith("["):
        return (
            f"'{resource[:200]}' is an expression of a template, which is not resolved here, so the target gives advice only: give what is deployed, by "
            "`az monitor autoscale show`"
        )
    return (
        f"'{resource[:200] or 'nothing'}' is no resource of a type that is known here, so the target gives advice only; "
        "docs/targets.md has what else can be scaled: correct `scaler`"
    )


def _bounds(profiles: Sequence[Profile], made: Imported) -> None:
    low = min(profile.minimum for profile in profiles)
    if low == 0 and made.table.get("kind") not in AT_ZERO and made.table["scaler"] != "advice":
        low = 1
        made.note("a minimum of 0", "such a resource has at least one instance, so the minimum is 1")
    made.table |= {"minimum": low, "maximum": max(*(profile.maximum for profile in profiles), low, 1)}
    base = next(
        (profile for profile in profiles if not profile.recurs and profile.fixed is None), profiles[0]
    )
    capacity = min(max(base.default, low), made.table["maximum"])
    made.table["fallback"] = {"capacity": capacity}


def _ruled(profiles: Sequence[Profile], made: Imported) -> Profile | None:
    """The profile whose rules are carried over: the default one's, or the first there are."""
    with_rules = [profile for profile in profiles if profile.rules]
    if not with_rules:
        return None
    chosen = next(
        (profile for profile in with_rules if not profile.recurs and profile.fixed is None), with_rules[0]
    )
    wanted = [_shape(rule) for rule in chosen.rules]
    for other in profiles:
        if other is chosen or [_shape(rule) for rule in other.rules] == wanted:
            continue
        if not other.rules and other.minimum == other.maximum:
            continue  # a fixed count, which bounds are
        made.note(
            f"the rules of profile '{other.name}'",
            f"a schedule bounds, it does not exchange rules: those of '{chosen.name}' are in force at all times",
        )
    return chosen


def _shape(rule: Given) -> tuple[Any, ...]:
    """What two rules are compared by."""
    trigger, action = rule.at("metricTrigger"), rule.at("scaleAction")
    names = (
        "metricName",
        "metricResourceUri",
        "timeGrain",
        "statistic",
        "timeWindow",
        "timeAggregation",
        "operator",
    )
    texts = [trigger.raw(name).casefold() for name in (*names, "threshold")]
    return (*texts, *(action.raw(name).casefold() for name in ("direction", "type", "value", "cooldown")))


def _cooldowns(conditions: Sequence[Condition], made: Imported) -> None:
    """Ours are per direction: that of scaling in counts from any change."""
    out = [condition.cooldown for condition in conditions if condition.out]
    inward = [condition.cooldown for condition in conditions if not condition.out]
    if out:
        made.table["out"] = {"cooldown": span_text(max(out))}
    if inward:
        made.table["in"] = {"cooldown": span_text(max(out + inward))}
    if len({*out}) > 1 or len({*inward}) > 1:
        made.note(
            "cooldowns that differ from rule to rule", "each direction has one, the longest of its rules"
        )
    if out and inward:
        made.note(
            "the cooldown of both directions",
            "there a scale-in delays the next scale-out, too; here it does not, and scaling in waits for the longest one after any change",
        )


def _others(body: Given, made: Imported) -> None:
    mode = body.at("predictiveAutoscalePolicy").text("scaleMode", "Disabled")
    if mode.casefold() != "disabled":
        made.note(
            "predictive autoscale",
            "not carried over; the rule `service_level` plans ahead: see `tidemark advise`",
        )
    for notification in body.tables("notifications"):
        _notification(notification, made)


def _notification(given: Given, made: Imported) -> None:
    email = given.at("email")
    wants = email.is_filled("customEmails") or any(
        email.flag(name, default=False)
        for name in ("sendToSubscriptionAdministrator", "sendToSubscriptionCoAdministrators")
    )
    if wants:
        made.note(
            "notifications by e-mail", "Tidemark sends webhooks: name one of an action group, which mails"
        )
    for index, hook in enumerate(given.tables("webhooks"), start=len(made.webhooks) + 1):
        if not hook.has("serviceUri"):
            continue
        key = (
            re.sub(r"[^A-Za-z0-9]+", "-", f"{made.name}-{index}" if index > 1 else made.name).strip("-")
            or "webhook"
        )
        setting = f"{key.replace('-', '_').upper()}_WEBHOOK_URL"
        setting = setting if setting[0].isalpha() else f"W_{setting}"
        what = "the address of the webhook, which is a secret: the setting had it as serviceUri"
        setting = made.setting(setting, hook.raw("serviceUri"), what)
        made.webhooks[key] = {"url": setting, "format": "azure_autoscale"}
        if hook.at("properties").names():
            made.note("properties of a webhook", "the body is the same but for these, which are not sent")
