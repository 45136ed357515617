// Simulated rules: what they would have, what they would cost, and whether to switch to them.

/** The imagined capacity over time: [[at, count or null]]. */
function simulatedOf(view, decisions, to) {
  const told = decisions.map((entry) => [entry.at, entry.shadow ? entry.shadow.current : null]);
  if (view.shadow) told.push([to, view.shadow.current]);
  return told.some(([, count]) => count !== null) ? told : [];
}

/** A share of messages or decisions, from 0 to 1; unknown where there is none. */
const partText = (share) => (share === null ? UNKNOWN : `${Number((share * 100).toPrecision(2))} %`);

function comparisonTable(shadow) {
  const [live, simulated] = shadow.simulated === "configured" ? ["shadow", "configured"] : ["configured", "shadow"];
  const row = (name, hours, late) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { className: "num" }, shadow.seconds ? numberText(hours) : UNKNOWN), h("td", { className: "num" }, partText(late)));
  const heads = ["rules", shadow.unit, shadow.wait === null ? "late" : `later than ${durationText(shadow.wait)}`];
  return h("table", {},
    h("thead", {}, h("tr", {}, heads.map((name, index) => h("th", { scope: "col", className: index ? "num" : "" }, name)))),
    h("tbody", {}, row(`${live}, deciding`, shadow.live_hours, shadow.live_late), row(`${simulated}, simulated`, shadow.simulated_hours, shadow.simulated_late)));
}

function shadowBlock(shadow, now) {
  const agreed = shadow.agreed === null ? null : `both wanted the same in ${partText(shadow.agreed)} of the decisions`;
  const since = shadow.since === null ? null : `since ${momentText(shadow.since, now)}, ${durationText(shadow.seconds)} seen`;
  return h("div", { className: "shadow" },
    h("h4", {}, shadow.simulated === "configured" ? "Shadow, promoted" : "Shadow"),
    h("p", { className: shadow.switch ? "advice change-it" : "advice" }, shadow.advice),
    comparisonTable(shadow),
    listOf("", [shadow.line, agreed, since, ...shadow.notes].filter(Boolean)));
}
