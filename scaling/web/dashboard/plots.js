// The charts of one target: one plot per metric with its levels, one of the capacity, one crosshair for all.

const METRIC_HEIGHT = 150;
const CAPACITY_HEIGHT = 110;
const TABLE_ROWS = 200;

/** What the plots of a target show between `from` and `to`: metrics, levels over time, capacity over time. */
function seriesOf(view, entries, from, to) {
  const decisions = entries.filter((entry) => entry.current !== null && entry.kind === "decision").reverse();
  const moved = entries.filter((entry) => entry.effect && entry.effect.reached !== null).reverse();
  const capacity = [
    ...decisions.map((entry) => [entry.at, entry.current]),
    ...moved.map((entry) => [entry.at, entry.effect.reached]),
  ].sort((a, b) => a[0] - b[0]);
  if (view.current !== null) capacity.push([to, view.current]);
  const bounds = decisions.map((entry) => [entry.at, entry.minimum, entry.maximum]);
  bounds.push([to, view.minimum, view.maximum]);
  return {
    from, to,
    unit: capacityUnit(view),
    metrics: view.metrics.map((metric) => ({
      name: metric.name,
      unit: metric.unit,
      points: metricPoints(metric, decisions).filter(([at]) => at >= from && at <= to),
      levels: view.levels
        .filter((level) => level.metric === metric.name)
        .map((level) => ({ ...level, steps: clipSteps(levelSteps(level, capacity), from, to) })),
    })),
    capacity: clipSteps(capacity, from, to),
    desired: clipSteps([...decisions.map((entry) => [entry.at, entry.desired]), [to, view.desired]], from, to),
    bounds: clipSteps(bounds, from, to),
    simulated: clipSteps(simulatedOf(view, decisions, to), from, to),
    arrivals: arrivalsOf(decisions, from, to),
  };
}

/** The log tells the past, the window's own samples the present; older log rows end where the samples begin. */
function metricPoints(metric, decisions) {
  const begin = metric.samples[0]?.[0] ?? Infinity;
  const logged = decisions
    .filter((entry) => entry.at < begin && entry.metrics[metric.name] !== undefined)
    .map((entry) => [entry.at, entry.metrics[metric.name]]);
  return [...logged, ...metric.samples];
}

/** A level over time: its value at the instance count of each moment. */
function levelSteps(level, capacity) {
  const valueAt = (count) => (level.by_count.length ? atOrBefore(level.by_count, count)?.[1] ?? null : level.value);
  const steps = capacity.map(([at, count]) => [at, valueAt(count)]);
  return steps.length ? steps : [[0, level.value]];
}

class Plots {
  /** `select(from, to)`, if given, gets a time that was chosen by dragging. */
  constructor(name, select = null) {
    this.name = name;
    this.select = select;
    this.dragged = null; // where a drag began, s
    this.at = null; // the moment under the crosshair
    this.followsEnd = false; // the crosshair stays on the newest point as time goes on
    this.body = h("div");
    this.readout = h("div", { className: "readout", hidden: true });
    this.pointer = h("div", {
      role: "slider", tabindex: "0", "aria-label": `Moment in the charts of ${name}`, "aria-valuemin": 0, "aria-valuemax": 0,
      "aria-valuenow": 0, "aria-valuetext": "no data", className: "plots",
      onkeydown: (event) => this.key(event), onfocus: () => this.focus(), onblur: () => this.leave(),
      onpointermove: (event) => this.hover(event), onpointerdown: (event) => this.press(event), onpointerup: (event) => this.release(event),
      onpointerleave: () => { if (document.activeElement !== this.pointer) this.leave(); },
    }, this.body, this.readout);
    this.toggle = h("button", { type: "button", className: "plain", "aria-expanded": "false", "aria-label": `Table of the charts of ${name}`, onclick: () => this.toggleTable() }, "Show table");
    this.note = h("span");
    this.table = h("div", { className: "data-table", hidden: true, tabindex: "0", role: "region", "aria-label": `Values of ${name}` });
    this.element = h("div", {}, this.pointer, h("div", { className: "plot-foot" }, this.note, this.toggle), this.table);
    this.observer = new ResizeObserver(() => this.series && this.draw());
    this.observer.observe(this.pointer);
  }

  update(series, gap, note) {
    Object.assign(this, { series, gap });
    setText(this.note, note);
    const times = new Set(series.metrics.flatMap((metric) => metric.points.map(([at]) => at)));
    for (const [at] of series.capacity) times.add(at);
    this.times = [...times].filter((at) => at >= series.from).sort((a, b) => a - b);
    if (this.followsEnd) this.at = this.times.at(-1) ?? null;
    this.draw();
    if (!this.table.hidden) this.fillTable();
  }

  draw() {
    const width = Math.max(240, this.pointer.clientWidth);
    this.width = width;
    this.scale = null;
    this.plots = [
      ...this.series.metrics.map((metric) => this.metricPlot(metric, width)),
      ...(this.series.arrivals ? [this.arrivalsPlot(width)] : []),
      this.capacityPlot(width),
    ];
    this.body.replaceChildren(...this.plots.map((plot) => plot.element));
    this.cross();
  }

  metricPlot(metric, width) {
    const { from, to } = this.series;
    const highest = Math.max(1, ...metric.points.map(([, value]) => value), ...metric.levels.flatMap((level) => level.steps.map(([, value]) => value ?? 0)));
    const ticks = valueTicks(highest * 1.04, 3, false);
    const scale = scales(from, to, ticks.at(-1), width, METRIC_HEIGHT);
    const drawing = [frame(scale, from, to, ticks, metric.unit)];
    for (const run of runsOf(metric.points, this.gap)) {
      if (run.length > 1) drawing.push(svg("path", { className: "area", d: areaPath(run, scale) }), svg("path", { className: "data", d: linePath(run, scale) }));
      else drawing.push(spot(run[0], scale));
    }
    for (const level of metric.levels) {
      drawing.push(svg("path", { className: `level level-${level.direction}`, d: stepPath(level.steps, to, scale) }));
    }
    const legend = metric.levels.map((level) => this.legendEntry(`level level-${level.direction}`, levelText(level, metric.unit)));
    const isDuration = metric.unit === "s";
    const latest = metric.points.length ? amountText(metric.points.at(-1)[1], metric.unit) : null;
    const said = latest === null ? "no samples" : `latest ${latest}${isDuration ? "" : ` ${metric.unit}`}`;
    return this.plot(isDuration ? metric.name : `${metric.name}, ${metric.unit}`, legend, drawing, scale, METRIC_HEIGHT, [said, ...metric.levels.map((level) => levelText(level, metric.unit))].join("; "), metric.points, metric.points.length ? null : "no samples in this time");
  }

  arrivalsPlot(width) {
    const { from, to, arrivals: { came, expected } } = this.series;
    const highest = Math.max(1e-3, ...came.map(([, value]) => value), ...expected.map(([, , high]) => high));
    const ticks = valueTicks(highest * 1.04, 3, false);
    const scale = scales(from, to, ticks.at(-1), width, METRIC_HEIGHT);
    const drawing = [frame(scale, from, to, ticks)];
    for (const run of runsOf(expected, this.gap)) drawing.push(svg("path", { className: "margin", d: betweenPath(run, scale) }));
    for (const run of runsOf(came, this.gap)) drawing.push(run.length > 1 ? svg("path", { className: "data", d: linePath(run, scale) }) : spot(run[0], scale));
    for (const run of runsOf(expected, this.gap)) drawing.push(svg("path", { className: "forecast", d: linePath(run, scale) }));
    const legend = [this.legendEntry("data", "came"), this.legendEntry("forecast", "expected"), this.legendEntry("margin", "margin")];
    const said = came.length ? `now ${numberText(came.at(-1)[1])}, expected ${numberText(expected.at(-1)?.[1] ?? null)}` : "nothing yet";
    return this.plot("arrivals, messages/s", legend, drawing, scale, METRIC_HEIGHT, said, came, null);
  }

  capacityPlot(width) {
    const { from, to, unit, capacity, desired, bounds, simulated } = this.series;
    const highest = Math.max(1, ...bounds.map(([, , maximum]) => maximum ?? 0), ...[...capacity, ...simulated].map(([, value]) => value ?? 0));
    const ticks = valueTicks(highest, 2, true);
    const scale = scales(from, to, ticks.at(-1), width, CAPACITY_HEIGHT);
    const drawing = [frame(scale, from, to, ticks)];
    bounds.forEach(([at, low, high], index) => {
      if (low === null || high === null) return;
      const end = index + 1 < bounds.length ? bounds[index + 1][0] : to;
      drawing.push(svg("rect", { className: "band", x: scale.x(at), width: Math.max(0, scale.x(end) - scale.x(at)), y: scale.y(high), height: Math.max(0, scale.y(low) - scale.y(high)) }));
    });
    drawing.push(
      svg("path", { className: "desired-line", d: stepPath(desired, to, scale) }),
      svg("path", { className: "data", d: stepPath(capacity, to, scale) }),
    );
    const legend = [this.legendEntry("data", "current"), this.legendEntry("desired-line", "desired"), this.legendEntry("band", "minimum to maximum")];
    let said = `now ${numberText(capacity.at(-1)?.[1] ?? null)}`;
    if (simulated.length) {
      drawing.push(svg("path", { className: "simulated-line", d: stepPath(simulated, to, scale) }));
      legend.push(this.legendEntry("simulated-line", "simulated"));
      said += `, simulated ${numberText(simulated.at(-1)[1])}`;
    }
    for (const entry of this.series.marks ?? []) {
      const moved = entry.effect?.reached === null ? 0 : (entry.effect?.reached ?? 0) - (entry.effect?.from_capacity ?? 0);
      const { sign, tone } = look(moved > 0 ? "scale_out" : moved < 0 ? "scale_in" : entry.reason);
      drawing.push(svg("text", { className: `mark-text mark-${tone}`, x: scale.x(entry.at), y: scale.top + 9, "text-anchor": "middle" }, svg("title", {}, entry.line), sign));
    }
    return this.plot(unit, legend, drawing, scale, CAPACITY_HEIGHT, said, capacity, capacity.length ? null : "no decisions in this time");
  }

  legendEntry(className, text) {
    const mark = className === "band" || className === "margin"
      ? svg("rect", { className, width: 20, height: 8 })
      : svg("line", { className, x1: 0, x2: 20, y1: 4, y2: 4 });
    return h("span", {}, svg("svg", { viewBox: "0 0 20 8", "aria-hidden": "true" }, mark), text);
  }

  plot(title, legend, drawing, scale, height, said, points, empty) {
    const cross = svg("g", { className: "cross-group" });
    if (empty) drawing.push(svg("text", { className: "axis-text", x: (scale.left + scale.right) / 2, y: height / 2, "text-anchor": "middle" }, empty));
    const canvas = svg("svg", { className: "canvas", viewBox: `0 0 ${this.width} ${height}`, height, role: "img", "aria-label": `${title}: ${said}` }, ...drawing, cross);
    const element = h("div", { className: "plot" }, h("div", { className: "plot-head" }, h("h4", {}, title), h("div", { className: "legend" }, legend)), canvas);
    this.scale ??= scale;
    return { element, cross, scale, points, height };
  }

  // Dragging: the stretch between press and release.

  moment(event) {
    const box = this.body.getBoundingClientRect();
    return this.scale.time(((event.clientX - box.left) / box.width) * this.width);
  }

  press(event) {
    this.hover(event);
    if (!this.select || !this.scale || event.button) return;
    this.dragged = this.moment(event);
    this.pointer.setPointerCapture(event.pointerId);
  }

  release(event) {
    const [from, to] = [this.dragged, this.dragged === null ? null : this.moment(event)].sort((a, b) => a - b);
    this.dragged = null;
    if (from === null || !this.select) return;
    if (this.scale.x(to) - this.scale.x(from) > 8) this.select(from, to);
    else this.cross();
  }

  // The crosshair: pointer, keyboard, readout.

  hover(event) {
    if (!this.times?.length) return;
    const box = this.body.getBoundingClientRect();
    const wanted = this.scale.time(((event.clientX - box.left) / box.width) * this.width);
    this.followsEnd = false;
    this.at = this.times.reduce((best, at) => (Math.abs(at - wanted) < Math.abs(best - wanted) ? at : best));
    this.cross();
  }

  focus() {
    if (this.at === null && this.pointer.matches(":focus-visible")) {
      this.followsEnd = true;
      this.at = this.times?.at(-1) ?? null;
    }
    this.cross();
  }

  leave() {
    this.at = null;
    this.followsEnd = false;
    this.cross();
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") return this.leave();
    const step = steps[event.key];
    if (step === undefined || !this.times?.length) return undefined;
    event.preventDefault();
    const index = this.at === null ? this.times.length - 1 : this.times.findLastIndex((at) => at <= this.at);
    const moved = Math.min(Math.max(index + step, 0), this.times.length - 1);
    this.at = this.times[moved];
    this.followsEnd = moved === this.times.length - 1;
    return this.cross();
  }

  cross() {
    const index = this.at === null ? -1 : this.times.findLastIndex((at) => at <= this.at);
    for (const plot of this.plots ?? []) plot.cross.replaceChildren(...(index < 0 ? [] : this.crossParts(plot)));
    this.readout.hidden = index < 0;
    const said = this.valuesAt(index < 0 ? this.times?.at(-1) ?? null : this.at);
    this.pointer.setAttribute("aria-valuemax", Math.max(0, (this.times?.length ?? 0) - 1));
    this.pointer.setAttribute("aria-valuenow", index < 0 ? Math.max(0, (this.times?.length ?? 0) - 1) : index);
    this.pointer.setAttribute("aria-valuetext", said.length ? said.map(([name, value]) => `${name} ${value}`.trim()).join(", ") : "no data");
    if (index < 0) return;
    const [[when], ...values] = said;
    this.readout.replaceChildren(h("p", { title: utcText(this.at) }, when), h("dl", {}, values.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
    const x = (this.scale.x(this.at) / this.width) * this.pointer.clientWidth;
    const right = x < this.pointer.clientWidth / 2;
    this.readout.style.left = right ? `${x + 12}px` : "auto";
    this.readout.style.right = right ? "auto" : `${this.pointer.clientWidth - x + 12}px`;
  }

  crossParts({ scale, points }) {
    const x = scale.x(this.at);
    const found = atOrBefore(points, this.at);
    if (this.dragged !== null) {
      const [low, high] = [scale.x(this.dragged), x].sort((a, b) => a - b);
      return [svg("rect", { className: "band", x: low, width: high - low, y: scale.top, height: scale.bottom - scale.top })];
    }
    const line = svg("line", { className: "cross", x1: x, x2: x, y1: scale.top, y2: scale.bottom });
    return found && this.at - found[0] <= this.gap ? [line, svg("circle", { className: "spot", cx: x, cy: scale.y(found[1]), r: 3.5 })] : [line];
  }

  /** [[time, ""], [name, value], ...] at a moment; a value older than a gap is unknown. */
  valuesAt(at) {
    if (at === null || !this.series) return [];
    const rows = [[momentText(at, this.series.to), ""]];
    for (const metric of this.series.metrics) {
      const found = atOrBefore(metric.points, at);
      rows.push([metric.name, found && at - found[0] <= this.gap ? amountText(found[1], metric.unit) : UNKNOWN]);
      for (const level of metric.levels) {
        const value = atOrBefore(level.steps, at)?.[1] ?? null;
        if (value !== null && !(level.direction === "in" && value <= 0)) rows.push([DIRECTIONS[level.direction], `${LEVEL_SIGNS[level.direction]} ${amountText(value, metric.unit)}`]);
      }
    }
    if (this.series.arrivals) {
      const { came, expected } = this.series.arrivals;
      rows.push(["arrivals/s", numberText(atOrBefore(came, at)?.[1])], ["expected/s", numberText(atOrBefore(expected, at)?.[1])]);
    }
    rows.push(["current", numberText(atOrBefore(this.series.capacity, at)?.[1])]);
    rows.push(["desired", numberText(atOrBefore(this.series.desired, at)?.[1])]);
    if (this.series.simulated.length) rows.push(["simulated", numberText(atOrBefore(this.series.simulated, at)?.[1])]);
    return rows;
  }

  // The same numbers as a table.

  toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.toggle.setAttribute("aria-expanded", String(!this.table.hidden));
    setText(this.toggle, this.table.hidden ? "Show table" : "Hide table");
    if (!this.table.hidden) this.fillTable();
  }

  fillTable() {
    const { metrics, to } = this.series;
    const counts = [["current", this.series.capacity], ["desired", this.series.desired]];
    if (this.series.simulated.length) counts.push(["simulated", this.series.simulated]);
    const heads = ["time", ...metrics.map((metric) => metric.name), ...counts.map(([name]) => name)];
    const rows = this.times.slice(-TABLE_ROWS).reverse().map((at) => h("tr", {},
      h("td", {}, timeElement(at, momentText(at, to))),
      metrics.map((metric) => {
        const found = atOrBefore(metric.points, at);
        return h("td", { className: "num" }, found && at - found[0] <= this.gap ? amountText(found[1], metric.unit) : UNKNOWN);
      }),
      counts.map(([, steps]) => h("td", { className: "num" }, numberText(atOrBefore(steps, at)?.[1]))),
    ));
    const head = h("tr", {}, heads.map((name, index) => h("th", { scope: "col", className: index ? "num" : "" }, name)));
    this.table.replaceChildren(h("table", {}, h("thead", {}, head), h("tbody", {}, rows)));
  }

  close() {
    this.observer.disconnect();
  }
}
