// What a rule `service_level` has learned: the budget of late messages, the forecast, and what other margins would cost.

const LATE_SHOWN = 2; // times the allowed share at which the meter ends

/** What came, and what was expected: [[at, rate]], and [[at, rate, rate with margin]] in the middle of the time expected. */
function arrivalsOf(decisions, from, to) {
  const of = (entry, statistic) => entry.evidence.find((each) => each.metric === "arrivals" && each.statistic === statistic);
  const reported = decisions.filter((entry) => of(entry, "now") && of(entry, "expected"));
  if (!reported.length) return null;
  const within = ([at]) => at >= from && at <= to;
  return {
    came: reported.map((entry) => [entry.at, of(entry, "now").value]).filter(within),
    expected: reported.map((entry) => {
      const forecast = of(entry, "expected");
      return [entry.at + forecast.span / 2, forecast.value, Math.max(forecast.value, forecast.threshold)];
    }).filter(within),
  };
}

/** A share given in per cent: two digits where it is small. */
const shareText = (value) => `${value < 10 ? Number(value.toFixed(2)) : Math.round(value)} %`;

/** `4.9/s, measured 120 times, last 3 h ago`. */
function knownText(known, unit, now) {
  const value = `${numberText(known.value)}${unit}`;
  if (known.given) return `${value}, as given`;
  if (!known.count) return `${value}, assumed`;
  const last = known.at === null ? "" : `, last ${momentText(known.at, now)}`;
  return `${value}, measured ${known.count === 1 ? "once" : `${known.count} times`}${last}`;
}

const SENSES = { counts: "the messages counted", age: "the age of what waits", drain: "how fast the backlog falls" };

/** `a message takes 1.6 s, known by the messages counted since 14:05`. */
function timeText(time, now) {
  const seconds = `${numberText(time.seconds)} s`;
  if (time.sense === "given") return `a message takes ${seconds}, as given`;
  if (!time.sense) return `a message takes ${seconds}, assumed`;
  if (!time.identified) return `how long a message takes is not known; to be safe: ${seconds}`;
  return `a message takes ${seconds}, known by ${SENSES[time.sense] ?? time.sense} since ${momentText(time.since, now)}`;
}

function meter(level) {
  const share = Math.min(level.late_today / level.allowed / LATE_SHOWN, 1) * 100;
  const tone = level.late_today > level.allowed ? "over" : "within";
  const text = `${shareText(level.late_today)} late today of ${shareText(level.allowed)} allowed`;
  return h("div", { className: "budget" },
    h("div", { className: "budget-track", role: "meter", "aria-valuemin": 0, "aria-valuemax": LATE_SHOWN * level.allowed, "aria-valuenow": Math.min(level.late_today, LATE_SHOWN * level.allowed), "aria-valuetext": text, "aria-label": "Late messages today" },
      svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { className: `budget-${tone}`, width: share, height: 8 }),
        svg("line", { className: "budget-limit", x1: 100 / LATE_SHOWN, x2: 100 / LATE_SHOWN, y1: 0, y2: 8 }))),
    h("span", {}, text));
}

function candidatesTable(level) {
  const rows = level.candidates.map((candidate) => h("tr", { className: candidate.chosen ? "chosen" : null },
    h("th", { scope: "row" }, `${Number(candidate.safety_factor.toFixed(2))}${candidate.chosen ? ", chosen" : ""}`),
    h("td", { className: "num" }, `${candidate.cost >= 1 ? "+" : "−"}${Math.abs((candidate.cost - 1) * 100).toFixed(0)} %`),
    h("td", { className: "num" }, shareText(candidate.late))));
  return h("details", {},
    h("summary", {}, "What other margins would cost"),
    h("table", {}, h("thead", {}, h("tr", {}, ["safety factor", "cost", "late"].map((name, index) => h("th", { scope: "col", className: index ? "num" : "" }, name)))), h("tbody", {}, rows)));
}

function serviceLevelBlock(level, now) {
  const peak = level.shape.length ? level.shape.indexOf(Math.max(...level.shape)) : -1;
  const clock = peak < 0
    ? "nothing that comes by the clock"
    : `minute ${peak} of the hour is ${Math.round(level.shape[peak] * 100)} % above its mean, trusted to ${Math.round(level.shape_trust * 100)} %`;
  return h("div", {},
    h("h4", {}, `Service level: ${durationText(level.wait)} for all but ${shareText(level.allowed)}`),
    meter(level),
    listOf("", [
      `expects ${numberText(level.expected)} messages/s, is ready for ${numberText(level.ready_for)}, now ${numberText(level.now)}`,
      timeText(level.message_time, now),
      `an instance serves ${knownText(level.service_rate, "/s", now)}`,
      `an instance starts within ${knownText({ ...level.start_up, value: Math.round(level.start_up.value) }, " s", now)}`,
      `concurrency of an instance: ${knownText(level.concurrency, " messages", now)}`,
      clock,
      level.learning_until === null ? `learning since ${momentText(level.since, now)}` : `still learning, until ${momentText(level.learning_until, now)}`,
    ]),
    candidatesTable(level));
}
