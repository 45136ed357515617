// Numbers, times and reasons in words. Pure: no document, no clock but the arguments.

const UNKNOWN = "?";

/** At most two decimals, or two digits of what is less than 1; large numbers in groups. */
function numberText(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value && Math.abs(value) < 1) return value.toLocaleString(undefined, { maximumSignificantDigits: 2 });
  const digits = Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : 2;
  return value.toLocaleString(undefined, { maximumFractionDigits: digits });
}

/** For axes: 0.0005, 1500, 20k, 3M, 2.5G. */
function compactText(value) {
  if (value >= 1e15) return value.toExponential(1);
  const [size, sign] = [[1e12, "T"], [1e9, "G"], [1e6, "M"]].find(([least]) => value >= least) ?? (value >= 1e4 ? [1e3, "k"] : [1, ""]);
  return `${+(value / size).toPrecision(4)}${sign}`;
}

/** 45 s, 10 min, 1 h 30 min, 2 d. */
function durationText(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60 || (whole < 600 && whole % 60)) {
    return whole < 120 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
  }
  const minutes = Math.round(whole / 60);
  const parts = [[Math.floor(minutes / 1440), "d"], [Math.floor((minutes % 1440) / 60), "h"], [minutes % 60, "min"]];
  return parts.filter(([count]) => count).slice(0, 2).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

/** A value of a metric: one in seconds is a duration. */
const amountText = (value, unit) => (unit === "s" && typeof value === "number" ? durationText(value) : numberText(value));

/** The same for axes: 45s, 10m, 1.5h. */
function axisText(value, unit) {
  if (unit !== "s") return compactText(value);
  const [size, name] = value >= 3600 ? [3600, "h"] : value >= 60 ? [60, "m"] : [1, "s"];
  return `${+(value / size).toFixed(1)}${name}`;
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const SHORT = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

const clockText = (at) => CLOCK.format(at * 1000);
const shortText = (at) => SHORT.format(at * 1000);
const utcText = (at) => `${new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;

/** The time of day, with the date where it is not the day of `now`. */
function momentText(at, now) {
  const day = DAY.format(at * 1000);
  return day === DAY.format(now * 1000) ? clockText(at) : `${day} ${clockText(at)}`;
}

/** What the capacity of a target counts. */
function capacityUnit(view) {
  return view.unit;
}

const LOOKS = {
  scale_out: ["▲", "out"], below_minimum: ["▲", "out"], fallback: ["▲", "warn"],
  scale_in: ["▼", "in"], above_maximum: ["▼", "in"],
  within_target: ["=", "hold"], cooling_down: ["◷", "hold"], stabilizing: ["◷", "hold"], rate_limited: ["◷", "hold"], changes_spent: ["◷", "hold"], unanswered: ["◷", "hold"],
  at_maximum: ["⊤", "warn"], at_minimum: ["⊥", "hold"], at_cap: ["⊤", "hold"], over_budget: ["⊤", "warn"], between_steps: ["⊥", "hold"],
  not_active: ["⊥", "hold"], still_active: ["⊥", "hold"],
  guarded: ["◆", "guard"], lock_step: ["◆", "guard"], plateau: ["◆", "guard"], overridden: ["●", "guard"], dry_run: ["○", "guard"],
  paused: ["‖", "warn"], external_change: ["◆", "warn"], action_pending: ["▸", "out"], incomplete_window: ["…", "warn"],
  stale_metric: ["!", "bad"], collect_failed: ["!", "bad"], invalid_metric: ["!", "bad"], entity_disabled: ["!", "bad"],
  capacity_unknown: ["!", "bad"], rule_failed: ["!", "bad"], state_corrupt: ["!", "bad"],
  applied: ["✓", "hold"], accepted: ["▸", "out"], already_there: ["✓", "hold"], limited: ["✓", "warn"], expired: ["!", "warn"],
  superseded: ["–", "hold"], withdrawn: ["–", "hold"], refused: ["!", "bad"], failed: ["!", "bad"],
  pause: ["‖", "warn"], resume: ["▸", "hold"], override: ["●", "guard"], "dry-run": ["○", "guard"], promote: ["●", "guard"],
};

/** Sign, tone and name of a reason, an outcome or an order; an unknown one is shown by its name. */
function look(reason) {
  const [sign, tone] = LOOKS[reason] ?? ["·", "hold"];
  return { sign, tone, text: String(reason).replaceAll("_", " ") };
}

const DIRECTIONS = { out: "scale out", in: "scale in", guard: "blocks out" };
const LEVEL_SIGNS = { out: ">", in: "<", guard: ">" };

/** "scale out: average > 500"; no metric is below 0, so that nothing scales in there. */
const levelText = (level, unit) => level.direction === "in" && level.value <= 0 ? "no scale in at this capacity" :
  `${DIRECTIONS[level.direction]}: ${level.statistic} ${LEVEL_SIGNS[level.direction]} ${amountText(level.value, unit)}`;
