// Geometry and drawing of one plot over time. No state, no requests.

const MARGIN = { left: 44, right: 12, top: 8, bottom: 20 };
const SHORT_LABELS = 36 * 3600; // s; times of day only, without days, which need more room
const TIME_STEPS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400, 172800, 432000, 864000];

/** Round ticks from 0 to at least `highest`; whole numbers only when `whole`. */
function valueTicks(highest, count, whole) {
  const rough = Math.max(highest, whole ? 1 : 1e-9) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  if (whole) step = Math.max(1, Math.ceil(step));
  return Array.from({ length: Math.ceil(highest / step - 1e-9) + 1 }, (_, index) => index * step);
}

/** Ticks at round times of the viewer's zone. */
function timeTicks(from, to, width) {
  const wanted = Math.max(2, Math.floor(width / (to - from > SHORT_LABELS ? 90 : 60)));
  const step = TIME_STEPS.find((size) => (to - from) / size <= wanted) ?? 2592000;
  const shiftAt = (at) => new Date(at * 1000).getTimezoneOffset() * 60;
  const shift = shiftAt(from);
  const first = Math.ceil((from - shift) / step) * step + shift;
  const ticks = Array.from({ length: Math.max(0, Math.floor((to + 3600 - first) / step) + 1) }, (_, index) => first + index * step);
  // A clock that is changed in between moves what comes after it; by an hour, which steps of an hour or less fit anyway.
  return ticks.map((at) => (step > 3600 ? at + shiftAt(at) - shift : at)).filter((at) => at <= to);
}

function scales(from, to, highest, width, height) {
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  return {
    left: MARGIN.left, right, top: MARGIN.top, bottom,
    x: (at) => MARGIN.left + ((at - from) / (to - from)) * (right - MARGIN.left),
    y: (value) => bottom - (value / (highest || 1)) * (bottom - MARGIN.top),
    time: (x) => from + ((x - MARGIN.left) / (right - MARGIN.left)) * (to - from),
  };
}

/** A sample without neighbours, as large as can be seen. */
const spot = ([at, value], scale) => svg("circle", { className: "spot", cx: scale.x(at), cy: scale.y(value), r: 3 });

const point = (x, y) => `${x.toFixed(1)},${y.toFixed(1)}`;

/** Runs of points with no more than `gap` seconds between neighbours: a missing sample breaks the line. */
function runsOf(points, gap) {
  const runs = [];
  points.forEach((entry, index) => {
    if (!index || entry[0] - points[index - 1][0] > gap) runs.push([]);
    runs.at(-1).push(entry);
  });
  return runs;
}

function linePath(run, scale) {
  return `M${run.map(([at, value]) => point(scale.x(at), scale.y(value))).join("L")}`;
}

function areaPath(run, scale) {
  const [first, last] = [scale.x(run[0][0]).toFixed(1), scale.x(run.at(-1)[0]).toFixed(1)];
  return `${linePath(run, scale)}L${last},${scale.bottom}L${first},${scale.bottom}Z`;
}

/** The area between the second and the third value of (time, low, high). */
function betweenPath(run, scale) {
  const high = run.map(([at, , value]) => [at, value]);
  const back = run.toReversed().map(([at, low]) => point(scale.x(at), scale.y(low)));
  return `${linePath(high, scale)}L${back.join("L")}Z`;
}

/** A step line through (time, value) until `end`; null values leave it open. */
function stepPath(points, end, scale) {
  let path = "";
  let drawing = false;
  points.forEach(([at, value], index) => {
    if (value === null) {
      drawing = false;
      return;
    }
    const next = index + 1 < points.length ? points[index + 1][0] : end;
    path += `${drawing ? "V" + scale.y(value).toFixed(1) : "M" + point(scale.x(at), scale.y(value))}H${scale.x(next).toFixed(1)}`;
    drawing = true;
  });
  return path;
}

/** The part of a step series within [from, to], with its value at `from` made explicit. */
function clipSteps(points, from, to) {
  const before = points.findLast(([at]) => at <= from);
  const inside = points.filter(([at]) => at > from && at <= to);
  return before ? [[from, ...before.slice(1)], ...inside] : inside;
}

/** The newest element of an ascending (time, ...) series not after `at`. */
function atOrBefore(points, at) {
  let [low, high] = [0, points.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= at) low = middle + 1;
    else high = middle;
  }
  return low ? points[low - 1] : null;
}

/** Times of day; days where whole days are shown. */
function tickText(at, length) {
  if (length <= SHORT_LABELS) return shortText(at);
  return length <= 4 * 86400 ? `${DAY.format(at * 1000)} ${shortText(at)}` : DAY.format(at * 1000);
}

/** Axes and grid. */
function frame(scale, from, to, ticks, unit = "") {
  const group = svg("g");
  for (const value of ticks) {
    const y = scale.y(value);
    group.append(
      svg("line", { className: "axis", x1: scale.left, x2: scale.right, y1: y, y2: y }),
      svg("text", { className: "axis-text", x: scale.left - 7, y: y + 4, "text-anchor": "end" }, axisText(value, unit)),
    );
  }
  for (const at of timeTicks(from, to, scale.right - scale.left)) {
    const x = scale.x(at);
    if (x > scale.right - 4 || x < scale.left + 4) continue;
    group.append(svg("text", { className: "axis-text", x, y: scale.bottom + 15, "text-anchor": "middle" }, tickText(at, to - from)));
  }
  return group;
}
