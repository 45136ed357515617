"""Tables of the advice."""

from __future__ import annotations

from spark_jobs.schemas import row_schema

ADVICE = row_schema("""
    target text, policy text, instance_hours double, late double, longest double, slow double,
    actions_per_hour double, flaps_per_hour double, score double, money double, knee flag, recommended flag
""")
"""One row per target and policy. `late` is a share, `longest` and `slow` (99 %) are seconds, null where not served."""

TAKEN = row_schema("target text, policy text, why text, toml text")
"""What to take for each target; `toml` is empty where today's policy stays."""
