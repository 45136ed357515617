// The list of targets: search, filter by state, and how many are shown at once.

const SHOWN_AT_ONCE = 50;
const OPEN_AT_FIRST = 3; // with no more targets than this all are open, else only the first
const MANY = 20; // with more than so many all are closed, and their rows are lower

const STATES = {
  all: ["All states", () => true],
  changing: ["Changing", (view) => view.pending !== null || (view.desired !== null && view.desired !== view.current)],
  attention: ["Needs attention", (view, app) => Boolean(alarmOf(chipsOf(view, app.now(), app.interval)))],
  ordered: ["Under an order", (view) => view.override !== null || view.pauses.length > 0 || view.dry_run],
};

class Targets {
  constructor(app) {
    this.app = app;
    this.cards = new Map();
    this.views = [];
    this.shown = SHOWN_AT_ONCE;
    byId("target-tools").onsubmit = (event) => event.preventDefault();
    byId("state").append(...Object.entries(STATES).map(([value, [text]]) => h("option", { value }, text)));
    byId("state").onchange = byId("search").oninput = () => { this.shown = SHOWN_AT_ONCE; this.arrange(); };
    byId("more-targets").onclick = () => { this.shown += SHOWN_AT_ONCE; this.arrange(); };
  }

  update(views) {
    const first = !this.views.length;
    this.tellChanges(views);
    this.views = views;
    setText(byId("target-count"), String(views.length));
    this.arrange();
    this.countStates();
    if (this.wanted) this.open(this.wanted);
    else if (first) {
      const open = views.length <= OPEN_AT_FIRST ? views : views.slice(0, views.length <= MANY ? 1 : 0);
      for (const view of open) this.cards.get(view.target)?.toggle(true);
    }
  }

  /** A target that the address names: found whatever was searched for, opened, and brought into sight. */
  open(name) {
    const view = this.views.find((each) => each.target === name);
    this.wanted = view ? null : name; // as soon as it is known
    if (!view) return;
    if (!this.cards.has(name)) {
      byId("search").value = name;
      byId("state").value = "all";
      this.arrange();
    }
    const card = this.cards.get(name);
    if (!card.open) card.toggle(true);
    card.element.scrollIntoView();
    card.button.focus({ preventScroll: true });
  }

  /** One target as an order's answer shows it. */
  accept(view) {
    this.update(this.views.map((old) => (old.target === view.target ? view : old)));
  }

  tellChanges(views) {
    const before = new Map(this.views.map((view) => [view.target, view]));
    const changes = views.filter((view) => {
      const old = before.get(view.target);
      return old && (old.current !== view.current || old.desired !== view.desired);
    });
    if (!changes.length) return;
    const told = changes.slice(0, 3).map((view) => `${view.target}: ${numberText(view.current)} to ${numberText(view.desired)}, ${look(view.reason).text}`);
    announce(changes.length > 3 ? `${told.join("; ")}; and ${changes.length - 3} more` : told.join("; "));
  }

  /** How many targets are in each state, beside its name. */
  countStates() {
    for (const option of byId("state").options) {
      const [text, matches] = STATES[option.value];
      setText(option, `${text} (${this.views.filter((view) => matches(view, this.app)).length})`);
    }
  }

  /** Puts the cards that match into the page, in order, with those that are open; others are closed and taken out. */
  arrange() {
    const wanted = byId("search").value.trim().toLowerCase();
    const [, matches] = STATES[byId("state").value] ?? STATES.all;
    const found = this.views.filter((view) => view.target.toLowerCase().includes(wanted) && matches(view, this.app));
    if (this.views.length > MANY) {
      const alarmed = new Set(found.filter((view) => STATES.attention[1](view, this.app)));
      found.sort((one, other) => alarmed.has(other) - alarmed.has(one)); // these are looked for; the order stays otherwise
    }
    const visible = found.filter((view, index) => index < this.shown || this.cards.get(view.target)?.open);
    const names = new Set(visible.map((view) => view.target));
    for (const [name, card] of this.cards) {
      if (names.has(name)) continue;
      card.close();
      card.element.remove();
      this.cards.delete(name);
    }
    const box = byId("cards");
    const focused = document.activeElement;
    box.classList.toggle("many", this.views.length > MANY);
    visible.forEach((view, index) => {
      let card = this.cards.get(view.target);
      if (!card) this.cards.set(view.target, card = new Card(view, this.app));
      if (box.children[index] !== card.element) box.insertBefore(card.element, box.children[index] ?? null);
      card.update(view);
    });
    if (focused !== document.activeElement && box.contains(focused)) focused.focus({ preventScroll: true }); // a card that is moved loses it
    this.tellEmpty(found.length);
    const rest = found.length - visible.length;
    byId("more-targets").hidden = rest <= 0;
    setText(byId("more-targets"), `Show ${Math.min(rest, SHOWN_AT_ONCE)} more of ${found.length}`);
  }

  tellEmpty(found) {
    byId("targets-empty").hidden = found > 0;
    setText(byId("targets-empty"), this.views.length ? "No target matches. Clear the search or choose all states." : "No targets are configured: add one to tidemark.toml and restart the app.");
  }

  reload() {
    for (const card of this.cards.values()) card.loadRange();
  }
}
