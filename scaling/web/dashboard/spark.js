// A metric in one glance: the samples of its window, as high as the row of its target.

const SPARK = { width: 96, height: 22 };

/** The first metric with samples; nothing where there is none. */
function sparkOf(view) {
  const metric = view.metrics.find((each) => each.samples.length > 1);
  if (!metric) return [];
  const [from, to] = [metric.samples[0][0], metric.samples.at(-1)[0]];
  const highest = Math.max(...metric.samples.map(([, value]) => value)) || 1;
  const path = metric.samples.map(([at, value]) => point(((at - from) / (to - from || 1)) * SPARK.width, SPARK.height - 1 - (value / highest) * (SPARK.height - 2))).join("L");
  const title = `${metric.name}, the last ${durationText(to - from)}: now ${numberText(metric.latest)}, at most ${numberText(highest)}`;
  return [svg("svg", { viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, preserveAspectRatio: "none", role: "img", "aria-label": title }, svg("title", {}, title), svg("path", { className: "data", d: `M${path}` }))];
}
