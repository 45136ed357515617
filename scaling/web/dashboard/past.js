// The history of one target: a day to a month, or any part of it; what happened in it, and what other rules would have done.
//
// It has an address of its own: #history/NAME/7d follows the present, #history/NAME/SINCE/UNTIL (epoch seconds) stays.

const SPANS = [["86400", "24 h"], ["259200", "3 d"], ["604800", "7 d"], ["2592000", "30 d"]];
const SHORTEST = 600; // s
const REFRESH = 60; // s, while it follows the present; less often where that would move nothing
const LISTED = 100;
const EXAMPLE = `# Keys as in [targets.NAME.shadow]; what is not here stays as it is.
[[rules]]
type = "threshold"
metric = "METRIC"
scale_out_above = 250
scale_in_below = 100
`;

const historyHash = (name, ...rest) => `#history/${[name, ...rest].map(encodeURIComponent).join("/")}`;

class Past {
  constructor(app) {
    this.app = app;
    this.asked = 0; // the newest request; answers of others are late
    this.box = byId("history");
    this.rows = byId("history-rows");
    segments(byId("history-spans"), "span", SPANS, "", (value) => this.go(historyHash(this.name, `${value / 86400}d`)));
    for (const [id, change] of [["earlier", [-0.5, -0.5]], ["later", [0.5, 0.5]], ["zoom-in", [0.25, -0.25]], ["zoom-out", [-0.5, 0.5]]]) {
      byId(`history-${id}`).onclick = () => this.move(...change);
    }
    byId("history-tools").onsubmit = (event) => event.preventDefault();
    byId("trial").onsubmit = (event) => { event.preventDefault(); this.tryRules(); };
    byId("history-changes").onchange = () => this.list();
    addEventListener("hashchange", () => this.route());
    setInterval(() => this.refresh(), REFRESH * 1000);
  }

  go(hash) {
    if (location.hash === hash) this.route();
    else location.hash = hash;
  }

  /** Shows what the address names: a history in place of the sections, or the sections, with a target opened. */
  route() {
    const [kind, name, from, to] = location.hash.slice(1).split("/").map(decoded);
    const shown = kind === "history" && Boolean(name);
    for (const section of document.querySelectorAll("main > section")) section.hidden = (section === this.box) !== shown;
    if (!shown) {
      this.close();
      if (kind === "target" && name) this.app.targets.open(name);
      return;
    }
    if (name !== this.name) this.begin(name);
    const days = /^(\d{1,2})d$/.exec(from ?? "")?.[1];
    this.follows = to === undefined || to === "";
    this.span = (days ? Math.min(90, Math.max(1, Number(days))) : 1) * 86400;
    [this.from, this.to] = [Number(from), Number(to)];
    if (!this.follows && !(this.from < this.to)) [this.follows, this.span] = [true, 86400];
    for (const input of byId("history-spans").querySelectorAll("input")) input.checked = this.follows && Number(input.value) === this.span;
    this.load();
  }

  /** Every read of a long time is hundreds of small ones for the server. What was asked by another clock is asked again. */
  refresh() {
    if (this.name && this.follows && !document.hidden && Math.abs(this.app.now() - this.to) >= this.span / 480) this.load();
  }

  begin(name) {
    this.close();
    this.name = name;
    this.trial = null;
    setText(byId("history-title"), `History of ${name}`);
    byId("history-back").href = `#target/${encodeURIComponent(name)}`;
    byId("trial-result").replaceChildren();
    this.plots = new Plots(`${name}, history`, (from, to) => this.stay(from, to));
    byId("history-plots").replaceChildren(this.plots.element);
    this.rows.replaceChildren();
    this.box.focus({ preventScroll: true });
    scrollTo(0, 0);
  }

  close() {
    this.plots?.close();
    [this.plots, this.name, this.answer, this.bare] = [null, null, null, false];
  }

  /** Moves the ends by shares of the length shown. */
  move(first, last) {
    const length = this.to - this.from;
    this.stay(this.from + first * length, this.to + last * length);
  }

  stay(from, to) {
    const now = this.app.now();
    const length = Math.min(Math.max(to - from, SHORTEST), 90 * 86400);
    const end = Math.min(now, (from + to + length) / 2);
    this.go(historyHash(this.name, Math.round(end - length), Math.round(end)));
  }

  async load() {
    const asked = this.asked += 1;
    const now = this.app.now();
    if (this.follows) [this.from, this.to] = [now - this.span, now];
    const { name } = this;
    setText(byId("history-when"), `${momentText(this.from, 0)} to ${momentText(this.to, 0)}`);
    this.box.setAttribute("aria-busy", "true");
    try {
      const answer = await readApi(`scaling/${encodeURIComponent(name)}/history`, { since: this.from, until: this.to });
      if (asked !== this.asked) return;
      for (const entry of answer.entries) entry.id = idOf(entry);
      this.answer = answer;
      setText(byId("history-failure"), "");
      this.draw();
      this.list();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (asked === this.asked) setText(byId("history-failure"), error.message);
    } finally {
      if (asked === this.asked) this.box.setAttribute("aria-busy", "false");
    }
  }

  /** The target as it was: what only the present knows is left out. */
  view() {
    const view = this.app.targets.views.find((each) => each.target === this.name);
    this.bare = !view; // the status may come after the history, or tell of no such target
    const metrics = view ? view.metrics : [...new Set(this.answer.entries.flatMap((entry) => Object.keys(entry.metrics)))].map((name) => ({ name, unit: "" }));
    const newest = this.answer.entries.find((entry) => entry.minimum !== null);
    return {
      scaler: "", levels: [], ...view, metrics: metrics.map((metric) => ({ ...metric, samples: [] })),
      current: null, desired: null, shadow: null, minimum: newest?.minimum ?? null, maximum: newest?.maximum ?? null,
    };
  }

  draw() {
    const { entries, every, since, until, complete } = this.answer;
    const view = this.view();
    const gap = 2.5 * Math.max(every, this.app.interval, view.interval ?? 0) + 5;
    const series = seriesOf(view, entries, since, until);
    if (this.trial) series.simulated = clipSteps(this.trial.simulated, since, until);
    const others = entries.filter((entry) => entry.kind !== "decision" && isChange(entry));
    // Each delivery of an action has an entry, and so has a check that finds its effect: one mark tells of it, the earliest.
    const known = (entry) => `${entry.decision_id} ${entry.effect?.reached === null ? "tried" : "there"}`;
    const earliest = new Map(others.map((entry) => [entry.effect ? known(entry) : entry.id, entry]));
    const marks = others.filter((entry) => earliest.get(entry.effect ? known(entry) : entry.id) === entry);
    series.marks = marks.slice(0, LISTED);
    const notes = [every ? `one decision of each ${durationText(every)} is shown, and every change` : "every decision is shown"];
    if (!complete) notes.push("there is more than can be shown: zoom in");
    if (marks.length > LISTED) notes.push(`of ${marks.length} changes the newest ${LISTED} have a mark`);
    notes.push("levels are those of the present rules; drag to zoom");
    if (!byId("trial-policy").value && !this.bare) byId("trial-policy").value = EXAMPLE.replace("METRIC", view.metrics[0]?.name ?? "backlog");
    this.plots.update(series, gap, notes.join("; "));
    Object.assign(byId("trial-run"), { disabled: mayOrder === false, title: mayOrder === false ? "Trying rules needs the role Tidemark.Operator" : "" });
  }

  list() {
    if (!this.answer) return;
    const only = byId("history-changes").checked;
    const found = this.answer.entries.filter(only ? isChange : () => true);
    rebuild(this.rows, [found.map((entry) => entry.id), this.asked], () => found.slice(0, LISTED).map((entry) => this.app.decisions.build(entry)));
    const rest = found.length - LISTED;
    byId("history-empty").hidden = found.length > 0 && rest <= 0;
    setText(byId("history-empty"), !found.length ? "Nothing changed in this time." : rest > 0 ? `${rest} more are not listed: zoom in.` : "");
  }

  async tryRules() {
    const box = byId("trial-result");
    const button = byId("trial-run");
    const { name, to } = this;
    button.disabled = true;
    box.replaceChildren(h("p", {}, "working it out…"));
    try {
      const trial = await orderApi(`scaling/${encodeURIComponent(name)}/rules/trial`, { policy: byId("trial-policy").value, until: to }, SLOW_TIMEOUT);
      if (name !== this.name) return;
      this.trial = trial;
      box.replaceChildren(...this.tell(trial));
      announce(`Tried on ${trial.decisions} decisions: ${trial.differing} differ`);
      if (this.answer) this.draw();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      box.replaceChildren(h("p", { className: "failure", role: "alert" }, error.message));
    } finally {
      button.disabled = false;
    }
  }

  tell({ decisions, skipped, differing, changes, simulated_changes, differences, warnings, view }) {
    if (!decisions) return [h("p", {}, "There are no decisions to try them on in that day.")];
    const { from, to } = this;
    const step = (from, to) => `${numberText(from)} → ${numberText(to)}`;
    const rows = differences.filter((each) => each.at >= from && each.at <= to).slice(0, LISTED).map((each) => h("tr", {},
      h("td", {}, timeElement(each.at, momentText(each.at, to))), h("td", { className: "num" }, step(each.current, each.desired)),
      h("td", { className: "num" }, step(each.imagined, each.simulated)), h("td", {}, each.line)));
    const head = h("tr", {}, ["time", "was", "simulated", "why simulated"].map((text, index) => h("th", { scope: "col", className: index % 3 ? "num" : "" }, text)));
    return [
      h("p", {}, `Of ${decisions} decisions ${differing} differ; ${simulated_changes} simulated changes, ${changes} in fact.`, skipped ? ` ${skipped} could not be tried: their inputs are not kept.` : ""),
      view && view.seconds ? comparisonTable(view) : null,
      listOf("", [...(view?.notes ?? []), ...warnings]),
      rows.length ? h("div", { className: "data-table", tabindex: "0", role: "region", "aria-label": "Decisions that differ" }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows))) : null,
    ].filter(Boolean);
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}
