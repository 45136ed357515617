// How a consumer went since the page was opened: its rate against the limit, and how far it is behind.

const REMEMBERED = 900; // s
const TRAIL_HEIGHT = 110;
const TRAIL_GAP = 30; // s between reports that are drawn as one line

/** What the newest reports said, one entry per report: {at, rate, limit, lag}. */
class Trail {
  constructor() {
    this.entries = [];
  }

  add(view) {
    const at = Math.max(0, ...view.instances.map((instance) => instance.at));
    if (!at || at <= (this.entries.at(-1)?.at ?? 0)) return;
    this.entries.push({ at, rate: view.written_per_s, limit: view.rate_limit, lag: view.lag });
    this.entries = this.entries.filter((entry) => entry.at > at - REMEMBERED);
  }

  points(name) {
    return this.entries.filter((entry) => entry[name] !== null).map((entry) => [entry.at, entry[name]]);
  }
}

class ConsumerPlots {
  constructor() {
    this.element = h("div", { className: "plots" });
    this.observer = new ResizeObserver(() => this.trail && this.draw());
    this.observer.observe(this.element);
  }

  update(trail, now) {
    Object.assign(this, { trail, now });
    this.draw();
  }

  draw() {
    const width = Math.max(240, this.element.clientWidth);
    const limits = this.trail.entries.map((entry) => [entry.at, entry.limit]);
    this.element.replaceChildren(
      this.plot("Records written per second", this.trail.points("rate"), limits, width),
      this.plot("Lag, events", this.trail.points("lag"), [], width));
  }

  plot(title, points, limits, width) {
    const from = Math.min(this.now - 60, this.trail.entries[0]?.at ?? this.now);
    const highest = Math.max(1, ...points.map(([, value]) => value), ...limits.map(([, value]) => value ?? 0));
    const ticks = valueTicks(highest * 1.04, 3, false);
    const scale = scales(from, this.now, ticks.at(-1), width, TRAIL_HEIGHT);
    const drawing = [frame(scale, from, this.now, ticks)];
    for (const run of runsOf(points, TRAIL_GAP)) {
      if (run.length > 1) drawing.push(svg("path", { className: "area", d: areaPath(run, scale) }), svg("path", { className: "data", d: linePath(run, scale) }));
      else drawing.push(spot(run[0], scale));
    }
    const limit = limits.at(-1)?.[1] ?? null;
    if (limits.some(([, value]) => value !== null)) drawing.push(svg("path", { className: "limit-line", d: stepPath(limits, this.now, scale) }));
    const said = points.length ? `latest ${numberText(points.at(-1)[1])}` : "not known";
    const label = `${title}: ${said}${limit === null ? "" : `, limit ${numberText(limit)}`}`;
    const mark = svg("svg", { viewBox: "0 0 20 8", "aria-hidden": "true" }, svg("path", { className: "limit-line", d: "M0,4H20" }));
    return h("div", { className: "plot" },
      h("div", { className: "plot-head" }, h("h4", {}, title), limit === null ? null : h("div", { className: "legend" }, h("span", {}, mark, `limit ${numberText(limit)}`))),
      svg("svg", { className: "canvas", viewBox: `0 0 ${width} ${TRAIL_HEIGHT}`, height: TRAIL_HEIGHT, role: "img", "aria-label": label }, drawing));
  }

  close() {
    this.observer.disconnect();
  }
}
