// The scaling log as a list: newest first, filtered, each entry with its whole explanation.

const ROWS_AT_ONCE = 50;
const PAGES_AT_ONCE = 10; // read for one press of "Load older" while the filter hides what arrives

/** An entry that changed something, or says that somebody or something did. */
const isChange = (entry) => entry.kind !== "decision" || (entry.desired !== null && entry.desired !== entry.current);

const FILTERS = { changes: isChange, all: () => true };

class Decisions {
  constructor(app) {
    this.app = app;
    this.filter = "changes";
    this.shown = ROWS_AT_ONCE;
    this.rows = new Map();
    this.open = new Set();
    this.pick = byId("decision-target");
    this.pick.onchange = () => this.begin();
    byId("decision-tools").onsubmit = (event) => event.preventDefault();
    segments(byId("decision-filter"), "filter", [["changes", "Changes only"], ["all", "All"]], this.filter, (value) => { this.filter = value; this.begin(); });
    byId("older").onclick = () => this.loadOlder();
  }

  /** Offers the targets to choose from. */
  offer(names) {
    if (this.offered === names.join("\n")) return;
    this.offered = names.join("\n");
    const chosen = this.pick.value;
    this.pick.replaceChildren(h("option", { value: "" }, "All targets"), ...names.map((name) => h("option", { value: name }, name)));
    this.pick.value = names.includes(chosen) ? chosen : "";
  }

  show(target) {
    this.pick.value = target;
    this.begin();
    byId("decisions").scrollIntoView();
    byId("decisions").focus({ preventScroll: true });
  }

  /** Another target or filter: starts over with what is loaded, and loads a first page where nothing is. */
  begin() {
    this.shown = ROWS_AT_ONCE;
    this.refresh();
    if (!this.visible.length) this.loadOlder(false);
  }

  async loadOlder(more = true) {
    const { log } = this.app;
    const scope = this.pick.value;
    if (more) this.shown += ROWS_AT_ONCE;
    byId("older").disabled = true;
    const before = this.visible.length;
    try {
      for (let page = 0; page < PAGES_AT_ONCE && !log.atEnd(scope) && this.count(scope) < this.shown; page += 1) await log.older(scope);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.app.failed(error);
    } finally {
      byId("older").disabled = false;
      this.refresh();
      if (more) announce(`${this.visible.length - before} older entries`);
    }
  }

  count(scope) {
    return this.app.log.list(scope).filter(FILTERS[this.filter]).length;
  }

  refresh() {
    const { log } = this.app;
    const scope = this.pick.value;
    const found = log.list(scope).filter(FILTERS[this.filter]);
    this.visible = found.slice(0, this.shown);
    this.arrange();
    const atEnd = log.atEnd(scope) && found.length <= this.shown;
    byId("older").hidden = atEnd || log.newest === null;
    byId("rows-empty").hidden = this.visible.length > 0;
    setText(byId("rows-empty"), this.emptyText(log, scope));
  }

  emptyText(log, scope) {
    if (log.newest === null) return "Loading…";
    if (this.filter === "changes" && log.list(scope).length) return "Nothing changed in the entries loaded so far. Choose All to see every decision to stay.";
    return `No decisions yet: the collector runs every ${durationText(this.app.interval)}, and each report is decided upon at once.`;
  }

  arrange() {
    const box = byId("rows");
    const ids = new Set(this.visible.map((entry) => entry.id));
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      row.remove();
      this.rows.delete(id);
    }
    this.visible.forEach((entry, index) => {
      let row = this.rows.get(entry.id);
      if (!row) this.rows.set(entry.id, row = this.build(entry));
      if (box.children[index] !== row) box.insertBefore(row, box.children[index] ?? null);
    });
  }

  build(entry) {
    const more = h("div", { className: "more", hidden: true });
    const button = h("button", { type: "button", "aria-expanded": "false" },
      h("span", { className: "chevron", "aria-hidden": "true" }),
      timeElement(entry.at, momentText(entry.at, this.app.now())),
      h("span", { className: "who" }, entry.target), h("span", {}, badge(entry.reason)), this.change(entry), h("span", { className: "said" }, entry.line));
    const toggle = (open) => {
      more.hidden = !open;
      button.setAttribute("aria-expanded", String(open));
      if (open) this.open.add(entry.id);
      else this.open.delete(entry.id);
      more.replaceChildren(...(open ? this.explain(entry) : []));
    };
    button.onclick = () => toggle(more.hidden);
    if (this.open.has(entry.id)) toggle(true);
    return h("div", { className: "row", role: "listitem" }, button, more);
  }

  change(entry) {
    if (entry.kind === "control") return h("span", { className: "change hold" }, "order");
    const [start, reached] = entry.effect ? [entry.effect.from_capacity, entry.effect.reached] : [entry.current, entry.desired];
    const changes = start !== null && reached !== null && reached !== start;
    const text = changes ? `${start} → ${reached}` : entry.current === null ? "–" : `stays ${entry.current}`;
    return h("span", { className: changes ? "change" : "change hold" }, text);
  }

  explain(entry) {
    const pairs = [["time", `${clockText(entry.at)} (${utcText(entry.at)})`], ["kind", entry.kind]];
    if (entry.proposed !== null) pairs.push(["rules asked for", numberText(entry.proposed)]);
    if (entry.minimum !== null) pairs.push(["bounds", `${entry.minimum}..${entry.maximum}`]);
    if (entry.by) pairs.push(["by", entry.by]);
    if (entry.effect) pairs.push(["outcome", look(entry.effect.outcome).text], ["reached", numberText(entry.effect.reached)], ["detail", entry.effect.detail || "–"]);
    if (entry.decision_id) pairs.push(["decision", entry.decision_id]);
    for (const [name, value] of Object.entries(entry.metrics)) pairs.push([name, numberText(value)]);
    const beside = entry.shadow ? [entry.shadow.line] : [];
    return [
      h("div", {}, h("h4", {}, "Numbers"), h("dl", { className: "pairs" }, pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))),
      listOf("Evidence", entry.evidence.map((evidence) => `${evidence.text}, rule ${evidence.rule}`)),
      listOf("What held it back", entry.limits),
      listOf("What would have changed it", entry.flips),
      listOf("Simulated beside it", beside),
    ].filter(Boolean);
  }
}
