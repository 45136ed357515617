// One target: a summary row that is always there, and details that are built when it is opened.

const LATE_INTERVALS = 3; // collector ticks without a decision before it is called late
const LATE_SLACK = 30; // s; queue and host take their time

/** [text, tone, title] of everything that is unusual about a target. */
function chipsOf(view, now, interval) {
  const until = (at) => (at === null ? "until resumed" : `until ${momentText(at, now)}`);
  const left = (at) => durationText(at - now);
  const found = [];
  const add = (condition, build) => { if (condition) found.push(build()); };
  add(view.capacity_error, () => ["capacity unknown", "bad", view.capacity_error]);
  add(view.corrupt.length, () => [`unreadable: ${view.corrupt.join(", ")}`, "bad"]);
  add(view.external_change, () => [`set to ${view.external_change.seen} by somebody else, expected ${view.external_change.expected}`, "warn"]);
  add(view.held_by, () => [`held by ${view.held_by}`, "warn"]);
  add(view.override, () => [`override ${view.override.capacity} ${until(view.override.until)} by ${view.override.by}`, "guard"]);
  for (const pause of view.pauses) found.push([`paused ${pause.direction ?? "both ways"} ${until(pause.until)} by ${pause.by}`, "warn"]);
  add(view.shadow?.promoted_by, () => [`shadow promoted by ${view.shadow.promoted_by}`, "guard", "its rules decide"]);
  add(view.dry_run, () => ["dry-run", "guard", "decides and logs, changes nothing"]);
  add(view.pending, () => [`pending ${view.pending.from_capacity} → ${view.pending.to_capacity}`, "out", view.pending?.action_id]);
  add(view.drain, () => [`workers: ${view.drain.acknowledged.length} of ${view.drain.needed} acknowledged`, "hold", `until ${momentText(view.drain.deadline, now)}${view.drain.goes_anyway ? ", then carried out" : ", then withdrawn"}`]);
  for (const metric of view.metrics) {
    if (metric.quality !== "ok") found.push([`${metric.name}: ${qualityOf(metric).text}`, qualityOf(metric).tone, metric.failure]);
  }
  add(view.missing_since !== null, () => [`metrics missing for ${durationText(now - view.missing_since)}`, "bad"]);
  add(view.cooldown_out_until !== null && view.cooldown_out_until > now, () => [`cooldown: no scale out until ${momentText(view.cooldown_out_until, now)}`, "hold", `${left(view.cooldown_out_until)} left`]);
  add(view.cooldown_in_until !== null && view.cooldown_in_until > now, () => [`cooldown: no scale in until ${momentText(view.cooldown_in_until, now)}`, "hold", `${left(view.cooldown_in_until)} left`]);
  add(view.budget?.warning, () => ["budget will not last", "warn", view.budget.warning]);
  const age = view.decided_at === null ? 0 : now - view.decided_at;
  add(age > LATE_INTERVALS * Math.max(interval, view.interval) + LATE_SLACK, () => [`no decision for ${durationText(age)}`, "bad"]);
  return found;
}

/** The chip that a person who is woken up must see: the first that is bad, else the first that warns. */
const alarmOf = (chips) => chips.find(([, tone]) => tone === "bad") ?? chips.find(([, tone]) => tone === "warn");

function numbersOf(view) {
  const changes = view.desired !== null && view.desired !== view.current;
  return h("span", { className: "numbers" },
    h("span", { className: "current" }, numberText(view.current)),
    h("span", { className: "arrow", "aria-label": "to" }, "→"),
    h("span", { className: changes ? "desired" : "desired same" }, numberText(view.desired)),
    h("span", { className: "bounds" }, `of ${view.minimum}..${view.maximum}`));
}

/** Text and tone of a metric's quality: a window that only has to fill, as after each start, is nothing to worry about. */
function qualityOf(metric) {
  if (metric.filling) return { text: `collecting, ${metric.filling}`, tone: "hold" };
  return { text: look(metric.quality).text, tone: metric.quality === "ok" ? "hold" : metric.quality === "gap" ? "warn" : look(metric.quality).tone };
}

function metricsTable(view) {
  const heads = [["metric", ""], ["quality", ""], ["latest", "num"], ["average", "num"], ["max", "num"], ["window", ""]];
  // Roles are written out: where there is no room for columns the style lays rows out as blocks, which are no table.
  const cell = (label, properties, ...content) => h("td", { role: "cell", "data-label": label, ...properties }, ...content);
  const rows = view.metrics.flatMap((metric) => [h("tr", { role: "row" },
    h("th", { scope: "row", role: "rowheader" }, metric.name),
    h("td", { role: "cell" }, chip(qualityOf(metric).text, qualityOf(metric).tone)),
    cell("latest", { className: "num" }, amountText(metric.latest, metric.unit)),
    cell("average", { className: "num" }, amountText(metric.average, metric.unit)),
    cell("max", { className: "num" }, amountText(metric.maximum, metric.unit)),
    cell("window", { title: metric.age === null ? "no sample" : `newest ${durationText(metric.age)} old` }, `${durationText(metric.covered)} of ${durationText(metric.span)}, n = ${metric.count}`),
  ), metric.failure ? h("tr", { role: "row" }, h("td", { role: "cell", className: "failure", colspan: heads.length }, metric.failure)) : null]);
  const head = h("tr", { role: "row" }, heads.map(([name, className]) => h("th", { scope: "col", role: "columnheader", className }, name)));
  return h("table", { className: "metrics", role: "table" }, h("thead", { role: "rowgroup" }, head), h("tbody", { role: "rowgroup" }, rows));
}

/** What is spent of the day's budget, as a bar and in words. */
function budgetOf(budget, now) {
  if (!budget) return null;
  const text = `budget: ${budget.text}; the day ends ${momentText(budget.day_ends, now)}`;
  return h("p", { className: "day-budget" },
    h("progress", { max: budget.per_day, value: Math.min(budget.spent, budget.per_day), "aria-label": "Spent of the day's budget" }), " ", text,
    budget.warning ? h("span", { className: "failure" }, ` ${budget.warning}`) : null);
}

class Card {
  /** `app` gives `now()`, `interval`, `range`, `log`, `accept(view)` and `showDecisions(target)`. */
  constructor(view, app) {
    this.app = app;
    this.view = view;
    const id = `card-${Card.count = (Card.count ?? 0) + 1}`;
    this.numbers = h("span");
    this.reason = h("span", { className: "verdict" });
    this.chips = h("span", { className: "chips" });
    this.spark = h("span", { className: "spark" });
    this.age = h("span", { className: "age" }); // for phones, whose list has no room for more
    this.button = h("button", { type: "button", className: "summary", "aria-expanded": "false", "aria-controls": id, onclick: () => this.toggle() },
      h("span", { className: "chevron", "aria-hidden": "true" }), h("span", { className: "name" }, view.target), this.spark, this.numbers, this.reason, this.chips, this.age);
    this.detail = h("div", { className: "detail", id, hidden: true });
    this.element = h("article", { className: "card", "aria-label": view.target }, h("h3", {}, this.button), this.detail);
  }

  get open() {
    return !this.detail.hidden;
  }

  update(view) {
    const changed = view.current !== this.view.current || view.desired !== this.view.desired;
    this.view = view;
    const now = this.app.now();
    rebuild(this.numbers, [view.current, view.desired, view.minimum, view.maximum], () => numbersOf(view));
    const collects = view.reason === "incomplete_window" && view.metrics.some((metric) => metric.filling);
    rebuild(this.reason, collects ? "collecting" : view.reason, () => (collects ? chip("collecting", "hold", view.reason_text) : view.reason ? badge(view.reason, view.reason_text) : chip("no decision yet", "hold")));
    const chips = chipsOf(view, now, this.app.interval);
    const alarm = alarmOf(chips);
    rebuild(this.chips, chips, () => chips.map((each) => {
      const element = chip(...each);
      element.classList.toggle("alarm", each === alarm);
      return element;
    }));
    const age = view.decided_at === null ? "–" : durationText(now - view.decided_at).split(" ").slice(0, 2).join(" ");
    setText(this.age, age);
    this.age.setAttribute("aria-label", view.decided_at === null ? "not decided yet" : `decided ${age} ago`);
    rebuild(this.spark, view.metrics.map((metric) => metric.samples.at(-1)), () => sparkOf(view));
    if (changed) this.flash();
    if (this.open) this.updateDetail();
  }

  flash() {
    this.button.classList.remove("flash");
    void this.button.offsetWidth; // restarts the animation
    this.button.classList.add("flash");
  }

  toggle(open = !this.open) {
    this.detail.hidden = !open;
    this.button.setAttribute("aria-expanded", String(open));
    if (!open) return this.close();
    this.buildDetail();
    this.updateDetail();
    return this.loadRange();
  }

  close() {
    this.plots?.close();
    this.plots = null;
    this.detail.replaceChildren();
  }

  buildDetail() {
    this.plots = new Plots(this.view.target);
    this.told = h("div", { className: "why" });
    const order = (name, text) => orderButton(`${text.replace("…", "")} ${this.view.target}`, text, () => askOrder(name, this.view, (view) => this.app.accept(view)));
    const actions = h("div", { className: "actions", role: "group", "aria-label": `Orders for ${this.view.target}` },
      order("pause", "Pause…"), order("resume", "Resume…"), order("override", "Override…"), order("dry-run", "Dry-run…"), this.view.shadow ? order("promote", "Shadow…") : null,
      h("a", { href: historyHash(this.view.target, "1d"), "aria-label": `History of ${this.view.target}` }, "History"),
      h("button", { type: "button", className: "plain", "aria-label": `Decisions of ${this.view.target}`, onclick: () => this.app.showDecisions(this.view.target) }, "Decisions ↓"));
    this.detail.replaceChildren(h("div", { className: "why" }, this.told, actions), this.plots.element);
  }

  updateDetail() {
    const { view, app } = this;
    const now = app.now();
    rebuild(this.told, [view, momentText(now, now)], () => this.tell(view, now));
    const from = now - app.range;
    const entries = app.log.list(view.target);
    const complete = app.log.scope(view.target).floor <= from;
    const note = this.loading ? "loading the past…" : complete || app.log.atEnd(view.target) ? "" : "older decisions are not loaded";
    this.plots.update(seriesOf(view, entries, from, now), 2.5 * Math.max(app.interval, view.interval) + 5, note);
  }

  tell(view, now) {
    const undrawn = view.levels.filter((level) => !view.metrics.some((metric) => metric.name === level.metric));
    const decided = view.decided_at === null ? null : h("span", {}, "decided ", timeElement(view.decided_at, momentText(view.decided_at, now)), `, ${durationText(now - view.decided_at)} ago`);
    const ready = view.ready === null || view.ready === view.current ? null : h("span", {}, `${view.ready} of ${view.current} ready`);
    return [
      h("div", { className: "big" }, numbersOf(view), h("div", { className: "facts" }, h("span", {}, view.scaler), ready, decided)),
      view.line
        ? h("div", {}, h("p", { className: "line" }, view.line), h("p", { className: "meaning" }, view.reason_text))
        : h("p", { className: "meaning" }, `No reports yet: the collector runs every ${durationText(this.app.interval)}. If nothing appears, look at the collector function's log.`),
      budgetOf(view.budget, now),
      view.capacity_error ? h("p", { className: "failure" }, `capacity: ${view.capacity_error}`) : null,
      listOf("What would change it", view.flips),
      ...view.service_levels.map((level) => serviceLevelBlock(level, now)),
      listOf("What held it back", view.limits),
      view.shadow ? shadowBlock(view.shadow, now) : null,
      h("div", { className: "scroll", tabindex: "0", role: "region", "aria-label": `Metrics of ${view.target}` }, metricsTable(view)),
      listOf("Levels of combined metrics", undrawn.map((level) => `${level.metric}, ${levelText(level)}`)),
    ];
  }

  /** Loads what the charts' range needs; draws as it arrives. */
  async loadRange() {
    if (!this.open) return;
    this.loading = true;
    this.updateDetail();
    try {
      await this.app.log.reach(this.view.target, this.app.now() - this.app.range);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.app.failed(error);
    } finally {
      this.loading = false;
      if (this.open) this.updateDetail();
    }
  }
}
