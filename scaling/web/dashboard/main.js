// The page's own life: polling, freshness, failures, and handing what arrives to the sections.

const FASTEST = 2; // s between polls
const SLOWEST = 5;
const RANGES = [["900", "15 min"], ["3600", "1 h"], ["21600", "6 h"], ["86400", "24 h"]];

class App {
  constructor() {
    this.log = new ScalingLog();
    this.range = 3600;
    this.interval = 60;
    this.offset = 0; // server's clock minus this machine's, s
    this.received = null; // when the newest complete answer arrived, by this machine's steady clock
    this.receivedText = ""; // the same as a time of day
    this.failure = null;
    this.pause = FASTEST;
    this.targets = new Targets(this);
    this.decisions = new Decisions(this);
    this.consumers = new Consumers(this);
    this.past = new Past(this);
    segments(byId("ranges"), "range", RANGES, String(this.range), (value) => { this.range = Number(value); this.targets.reload(); });
    byId("banner-key").onclick = () => (this.failure?.wantsSignIn ? location.reload() : askKey(() => this.poll()));
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    setText(byId("zone"), zone === "UTC" ? "times in UTC" : `times in ${zone}; UTC on hover`);
    document.addEventListener("visibilitychange", () => (document.hidden ? this.rest() : this.poll()));
    setInterval(() => this.tick(), 1000);
    this.tick();
    this.poll();
    this.past.route();
  }

  /** The server's time, as far as the last answer told it. */
  now() {
    return Date.now() / 1000 + this.offset;
  }

  async poll() {
    clearTimeout(this.timer);
    if (this.polling || document.hidden) return;
    this.polling = true;
    const begun = performance.now();
    try {
      const consumers = this.consumers.poll(); // tells its own failures: targets are shown without consumers
      const status = await readApi("scaling/status");
      const offset = status.now - Date.now() / 1000;
      const moved = Math.abs(offset - this.offset) > FASTEST;
      this.offset = offset;
      if (moved) this.past.refresh(); // its address may have been opened before the server's time was known
      this.interval = status.collect_interval;
      this.showStatus(status);
      await this.log.poll(status.now);
      await consumers;
      this.decisions.refresh();
      this.received = performance.now();
      this.receivedText = clockText(Date.now() / 1000);
      this.failure = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.failed(error);
    } finally {
      this.polling = false;
      const took = (performance.now() - begun) / 1000;
      this.pause = Math.min(SLOWEST, Math.max(FASTEST, took * 5, this.interval / 30));
      this.timer = setTimeout(() => this.poll(), this.pause * 1000);
      this.tick();
    }
  }

  rest() {
    clearTimeout(this.timer);
    this.tick();
  }

  showStatus(status) {
    signedIn = status.signed_in ?? null;
    mayOrder = status.may_order ?? null;
    byId("who").hidden = signedIn === null;
    setText(byId("who-name"), `${mayOrder === false ? "reading as " : ""}${signedIn ?? ""}`);
    this.targets.update(status.targets);
    if (this.past.bare) this.past.draw();
    this.decisions.offer(status.targets.map((view) => view.target));
    this.showPoison(status.poison);
    byId("problems").hidden = !status.problems.length;
    rebuild(byId("problems"), status.problems, () => status.problems.map((text) => h("li", {}, text)));
    setText(byId("version"), `Tidemark ${status.version}, collects every ${durationText(status.collect_interval)}`);
  }

  showPoison(poison) {
    const count = byId("poison-count");
    setText(count, String(poison.count));
    count.classList.toggle("some", poison.count > 0);
    const rest = poison.count - poison.messages.length;
    byId("poison-empty").hidden = poison.count > 0 && rest <= 0;
    setText(byId("poison-empty"), poison.count
      ? `${rest} more are not shown. Read and remove them with a storage tool once their cause is repaired.`
      : "None: every message on the queues was understood and carried out.");
    rebuild(byId("poison-list"), poison.messages, () => poison.messages.map((message) => h("li", {},
      h("div", { className: "head" }, h("b", {}, message.queue), h("span", {}, message.message_id),
        message.inserted_at === null ? null : timeElement(message.inserted_at, momentText(message.inserted_at, this.now()))),
      h("pre", { tabindex: "0", role: "region", "aria-label": `Body of ${message.message_id}` }, message.body))));
  }

  /** An answer of an order: shown at once, since it is the server's. */
  accept(view) {
    this.targets.accept(view);
    this.poll();
  }

  showDecisions(target) {
    this.decisions.show(target);
  }

  failed(error) {
    this.failure = error;
    this.tick();
  }

  /** Once a second: how old everything is, and whether that is too old to pass for the present. */
  tick() {
    const age = this.received === null ? null : (performance.now() - this.received) / 1000;
    const resting = document.hidden;
    const late = age !== null && age > 3 * this.pause + 5 && !resting;
    const stale = this.failure !== null || late;
    document.body.classList.toggle("stale", stale);
    document.body.classList.toggle("paused-page", resting);
    setText(byId("fresh-text"), age === null ? (stale ? "no data" : "connecting…") : resting ? "paused" : `updated ${durationText(age)} ago`);
    byId("banner").hidden = !stale;
    byId("banner-key").hidden = !this.failure?.wantsKey && !this.failure?.wantsSignIn;
    setText(byId("banner-key"), this.failure?.wantsSignIn ? "Sign in" : "Enter key…");
    if (stale) setText(byId("banner-text"), this.bannerText(age));
  }

  bannerText(age) {
    const since = age === null ? "Nothing has been loaded yet." : `Everything below is from ${this.receivedText}, not the present.`;
    if (this.failure === null) return `The server has not answered for a while. ${since}`;
    if (this.failure.wantsSignIn) return `The sign-in is over. ${since}`;
    if (this.failure.wantsKey) return `The server wants a key (HTTP ${this.failure.status}). ${since}`;
    if (this.failure.status === 0) return `The server cannot be reached: ${this.failure.message}. ${since}`;
    return `The server answered HTTP ${this.failure.status}: ${this.failure.message}. ${since}`;
  }
}

new App();
