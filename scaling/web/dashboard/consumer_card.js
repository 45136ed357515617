// One consumer: a summary row, and below it measures, instances, plots and partitions.

const GONE_SHOWN = 5; // instances that stopped or went silent; more are counted only
const LONG_WAIT = 60; // s an event may be tried before it is told

const STATE_TONES = { alive: "good", paused: "warn", stopped: "hold", failed: "bad", stale: "bad" };

const percentText = (share) => (share === null ? UNKNOWN : `${numberText(Math.round(share * 1000) / 10)} %`);
const isLive = (instance) => instance.state === "alive" || instance.state === "paused";
const countText = (count, noun) => `${numberText(count)} ${noun}${count === 1 ? "" : "s"}`;

const holds = (order) => order && (order.rate !== null || order.fleet_rate !== null);

function orderText(order, unit) {
  const each = order.rate !== null;
  const value = each ? order.rate : order.fleet_rate;
  return `ordered: ${value ? `${numberText(value)} ${unit} ${each ? "each" : "together"}` : "no limit"} by ${order.by}`;
}

/** [text, tone, title] of everything about a consumer that is unusual. */
function consumerChips(view) {
  const silent = view.instances.filter((instance) => instance.state === "stale");
  const paused = view.instances.filter((instance) => instance.state === "paused");
  const notices = view.instances.filter((instance) => isLive(instance) && instance.notice).map((instance) => instance.notice);
  const orphans = view.partitions.filter((partition) => !partition.live);
  return [
    silent.length && [`${silent.length} stale`, "bad", silent.map((instance) => instance.instance).join(", ")],
    orphans.length && [`${countText(orphans.length, "partition")} without a live instance`, "bad", orphans.map((partition) => partition.partition).join(", ")],
    paused.length && [`${paused.length} paused`, "warn", "back-pressure: receiving goes on when the backlog has shrunk"],
    notices.length && ["changed before this start", "warn", notices[0]],
    view.throttled_share > 0 && [`${percentText(view.throttled_share)} throttled`, "warn", "share of writes answered 429"],
    view.oldest_age_s > LONG_WAIT && [`oldest begun ${durationText(view.oldest_age_s)} ago`, "warn"],
    view.dead_letters_total > 0 && [`${countText(view.dead_letters_total, "dead letter")} made`, "warn", "since its instances started, those since written or purged included"],
    holds(view.order) && [orderText(view.order, "records/s"), "guard"],
    holds(view.ru_order) && [orderText(view.ru_order, "RU/s"), "guard"],
  ].filter(Boolean);
}

/** Behind a limit, whose it is. */
const sharedText = (view) => (view.rate_hubs_count ? ` of ${view.rate_hubs_count} hubs together` : "");

function rateNumbers(view) {
  return h("span", { className: "numbers" },
    h("span", { className: "current" }, numberText(view.written_per_s)),
    h("span", { className: "bounds" }, view.rate_limit === null ? "records/s" : `of ${numberText(view.rate_limit)} records/s${sharedText(view)}`));
}

function measuresOf(view) {
  const rows = [
    ["lag", numberText(view.lag)],
    ["RU per record", numberText(view.ru_per_record)],
    ["RU/s", numberText(view.ru_per_s)],
    ["429 share", percentText(view.throttled_share)],
    ["dead letters made", numberText(view.dead_letters_total)],
    ["backlog", view.live ? numberText(view.backlog_count) : UNKNOWN],
    ["oldest begun", view.oldest_age_s === null ? UNKNOWN : durationText(view.oldest_age_s)],
  ];
  return h("dl", { className: "measures" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function headOf(heads) {
  return h("thead", {}, h("tr", {}, heads.map(([name, className]) => h("th", { scope: "col", className }, name))));
}

/** What an instance does now; of one that is gone nobody knows. */
function presentOf(one) {
  if (!isLive(one)) return ["–", "–", "–", "–", "–", "–"];
  const limit = one.rate_limit === null ? "none" : numberText(one.rate_limit);
  return [numberText(one.written_per_s), limit, percentText(one.throttled_share), numberText(one.ru_per_record), numberText(one.backlog_count), String(one.partitions.length)];
}

function instancesTable(view) {
  const gone = view.instances.filter((instance) => !isLive(instance));
  const live = view.instances.filter(isLive).sort((a, b) => (a.instance < b.instance ? -1 : 1)); // by age they would jump about
  const shown = [...live, ...gone.slice(0, GONE_SHOWN)];
  const heads = [["instance", ""], ["state", ""], ["reported", "num"], ["records/s", "num"], ["limit", "num"], ["429", "num"], ["RU/record", "num"], ["backlog", "num"], ["partitions", "num"]];
  const rows = shown.map((one) => h("tr", { className: isLive(one) ? null : "gone" },
    h("th", { scope: "row" }, one.instance),
    h("td", {}, chip(one.state, STATE_TONES[one.state], one.problem || null)),
    h("td", { className: "num", title: utcText(one.at) }, `${durationText(one.age)} ago`),
    presentOf(one).map((text) => h("td", { className: "num" }, text))));
  const rest = gone.length - GONE_SHOWN;
  return [h("table", { className: "instances" }, headOf(heads), h("tbody", {}, rows)), rest > 0 ? h("p", { className: "meaning" }, `${rest} more that stopped within the last day`) : null];
}

/** Events between the low-water mark and the newest in the hub: [received, not yet received]; null when unknown. */
function spanOf(partition) {
  const { received, last_enqueued: last } = partition;
  if (received === null) return null;
  const low = partition.low_water ?? received - partition.in_flight;
  return [Math.max(0, received - low), Math.max(0, (last ?? received) - received)];
}

function trackOf(span, longest) {
  const track = svg("svg", { className: "track", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  let x = 0;
  for (const [index, className] of [[0, "held"], [1, "behind"]]) {
    const events = span?.[index] ?? 0;
    if (!events) continue;
    const width = Math.max(0.7, (events / longest) * 98);
    track.append(svg("rect", { className, x, y: 0, width, height: 10 }));
    x += width;
  }
  return track;
}

function partitionsTable(view) {
  const spans = view.partitions.map(spanOf);
  const longest = Math.max(1, ...spans.map((span) => (span ? span[0] + span[1] : 0)));
  const heads = [["partition", ""], ["low-water mark → newest", "progress"], ["lag", "num"], ["low-water", "num"], ["received", "num"], ["newest", "num"], ["in flight", "num"], ["instance", ""]];
  const rows = view.partitions.map((one, index) => h("tr", { className: one.live ? null : "gone" },
    h("th", { scope: "row" }, one.partition),
    h("td", { className: "progress" }, trackOf(spans[index], longest)),
    [numberText(one.lag), one.low_water === null ? "none yet" : numberText(one.low_water), ...[one.received, one.last_enqueued, one.in_flight].map(numberText)].map((text) => h("td", { className: "num" }, text)),
    h("td", {}, one.instance, one.live ? null : " (gone)")));
  return h("table", { className: "partitions" }, headOf(heads), h("tbody", {}, rows));
}

const trackLegend = () => h("div", { className: "legend" }, [["held", "received, above the low-water mark"], ["behind", "waiting in the hub"]].map(([className, text]) =>
  h("span", {}, svg("svg", { className: "track", viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { className, width: 10, height: 10 })), text)));

class ConsumerCard {
  /** `app` gives `now()` and `poll()`. */
  constructor(view, app) {
    this.app = app;
    this.trail = new Trail();
    const id = `consumer-${ConsumerCard.count = (ConsumerCard.count ?? 0) + 1}`;
    this.numbers = h("span");
    this.alive = h("span");
    this.chips = h("span", { className: "chips" });
    this.button = h("button", { type: "button", className: "summary", "aria-expanded": "false", "aria-controls": id, onclick: () => this.toggle() },
      h("span", { className: "chevron", "aria-hidden": "true" }), h("span", { className: "name" }, view.consumer), this.numbers, this.alive, this.chips);
    this.detail = h("div", { className: "detail", id, hidden: true });
    this.element = h("article", { className: "card", "aria-label": `Consumer ${view.consumer}` }, h("h3", {}, this.button), this.detail);
    this.view = view;
  }

  update(view) {
    this.view = view;
    this.trail.add(view);
    const chips = consumerChips(view);
    rebuild(this.numbers, [view.written_per_s, view.rate_limit, view.rate_hubs_count], () => rateNumbers(view));
    rebuild(this.alive, view.live, () => h("span", { className: `badge tone-${view.live ? "good" : "bad"}` }, view.live ? `${view.live} alive` : "none alive"));
    rebuild(this.chips, chips, () => chips.map(([text, tone, title]) => chip(text, tone, title)));
    if (!this.detail.hidden) this.updateDetail();
  }

  toggle(open = this.detail.hidden) {
    this.detail.hidden = !open;
    this.button.setAttribute("aria-expanded", String(open));
    if (!open) return this.close();
    this.plots = new ConsumerPlots();
    this.told = h("div", { className: "why" });
    this.partitions = h("div");
    const { consumer } = this.view;
    const scroll = (label, content) => h("div", { className: "scroll", tabindex: "0", role: "region", "aria-label": `${label} of ${consumer}` }, content);
    this.instances = h("div");
    const actions = h("div", { className: "actions" },
      orderButton(`Rate of ${consumer}`, "Rate…", () => askRate(this.view, () => this.app.poll())));
    this.detail.replaceChildren(
      h("div", { className: "why" }, this.told, actions, this.plots.element),
      h("div", { className: "why" }, h("div", {}, h("div", { className: "plot-head" }, h("h4", {}, "Instances")), scroll("Instances", this.instances)), h("div", {}, h("div", { className: "plot-head" }, h("h4", {}, "Partitions"), trackLegend()), scroll("Partitions", this.partitions))));
    return this.updateDetail();
  }

  updateDetail() {
    const { view } = this;
    const sources = [...new Set(view.instances.map((one) => `${one.hub}, group ${one.consumer_group}`))];
    rebuild(this.told, view, () => [
      h("div", { className: "big" }, rateNumbers(view), h("div", { className: "facts" }, sources.map((text) => h("span", {}, text)))),
      measuresOf(view),
    ]);
    rebuild(this.instances, view.instances, () => (view.instances.length ? instancesTable(view) : h("p", { className: "meaning" }, "No instance has reported within the last day.")));
    rebuild(this.partitions, view.partitions, () => (view.partitions.length ? partitionsTable(view) : h("p", { className: "meaning" }, "No instance owns a partition.")));
    this.plots.update(this.trail, this.app.now());
  }

  close() {
    this.plots?.close();
    this.plots = null;
    this.detail.replaceChildren();
  }
}
