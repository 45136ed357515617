// Operators' orders and the key, each in a dialog. Nothing changes on the page before the server has answered.

const NAME = "tidemark.by";
const LASTING = [["15m", "15 minutes"], ["30m", "30 minutes"], ["1h", "1 hour"], ["4h", "4 hours"], ["1d", "1 day"]];

const field = (label, control, hint) => h("label", {}, label, control, hint ? h("span", { className: "hint" }, hint) : null);

const choices = (name, entries, chosen) =>
  h("select", { name }, entries.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));

const ORDERS = {
  pause: {
    title: (view) => `Pause ${view.target}`,
    submit: "Pause",
    fields: () => [
      field("Direction", choices("direction", [["", "scaling out and in"], ["out", "scaling out only"], ["in", "scaling in only"]], "")),
      field("For", choices("for", [...LASTING, ["", "until resumed"]], "30m")),
    ],
    body: (data) => ({ direction: data.get("direction") || null, for: data.get("for") || null }),
  },
  resume: {
    title: (view) => `Resume ${view.target}`,
    submit: "Resume",
    fields: () => [h("p", {}, "Lifts every pause and override of this target, and takes over a capacity that somebody else set.")],
    body: () => ({}),
  },
  override: {
    title: (view) => `Override ${view.target}`,
    submit: "Override",
    fields: (view) => [
      field(capacityUnit(view) === "instances" ? "Instances" : capacityUnit(view), h("input", { name: "capacity", type: "number", step: "1", inputmode: "numeric", required: true, value: String(view.current ?? view.minimum) }), `${view.minimum} to ${view.maximum}; held there whatever the rules say`),
      field("For", choices("for", LASTING, "1h")),
    ],
    body: (data) => ({ capacity: Number(data.get("capacity")), for: data.get("for") }),
  },
  "dry-run": {
    title: (view) => `Dry-run of ${view.target}`,
    submit: "Apply",
    fields: (view) => [
      field("Dry-run", choices("on", [["true", "on: decide and log, change nothing"], ["false", "off: carry out decisions"], ["null", "as configured"]], view.dry_run ? "false" : "true")),
    ],
    body: (data) => ({ on: JSON.parse(data.get("on")) }),
  },
  promote: {
    title: (view) => `Shadow of ${view.target}`,
    submit: "Apply",
    fields: (view) => [
      h("p", {}, view.shadow.advice),
      h("input", { name: "rules", type: "hidden", value: view.shadow.rules ?? "" }),
      field("From now on", choices("on", [["true", "promote: the shadow's rules decide"], ["false", "withdraw: the configured rules decide"]], view.shadow.promoted_by ? "false" : "true"), "within the target's own bounds; tidemark.toml should follow"),
    ],
    body: (data) => ({ on: JSON.parse(data.get("on")), rules: data.get("rules") || null }),
  },
};

/** A button for orders; for a reader it says what is missing, before anything is filled in. */
function orderButton(label, text, ask) {
  const refused = mayOrder === false;
  return h("button", { type: "button", "aria-label": label, disabled: refused, title: refused ? "Orders need the role Tidemark.Operator" : "", onclick: ask }, text);
}

/** Who gives the order: whoever is signed in, or else a name to be typed. */
function nameField() {
  if (signedIn !== null) return h("p", {}, `Written to the scaling log as ${signedIn}.`);
  return field("Your name", h("input", { name: "by", required: true, autocomplete: "username", value: localStorage.getItem(NAME) ?? "" }), "written to the scaling log");
}

/** The name that was typed, which is kept for the next order; null where somebody is signed in. */
function nameOf(data) {
  const by = data.get("by");
  if (by !== null) localStorage.setItem(NAME, by);
  return by;
}

/** Asks for an order, sends it, and calls `done(view)` with the target as the server then shows it. */
function askOrder(name, view, done) {
  const order = ORDERS[name];
  openDialog({
    title: order.title(view),
    submit: order.submit,
    fields: [...order.fields(view), nameField()],
    send: async (data) => {
      const answer = await orderApi(`scaling/${encodeURIComponent(view.target)}/${name}`, { ...order.body(data), by: nameOf(data) });
      announce(`${order.submit} ${view.target}: done`);
      done(answer);
    },
  });
}

/** Asks for a consumer's rate, sends it, and calls `done()`; instances follow within their next report. */
function askRate(view, done) {
  const scope = choices("scope", [["rate", "of each instance"], ["fleet_rate", "of all instances together"], ["", "as configured: lift the order"]], "rate");
  const unit = choices("unit", [["records", "records"], ["request_units", "request units"]], "records");
  const amount = h("input", { name: "amount", type: "number", min: "0", step: "any", inputmode: "decimal", required: true });
  scope.onchange = () => { amount.disabled = !scope.value; };
  openDialog({
    title: `Rate of ${view.consumer}`,
    submit: "Set rate",
    fields: [field("Limit of", unit, "both limits hold beside each other"), field("Rate", scope), field("Per second", amount, "fractions are fine; 0 is no limit; holds until lifted, over restarts too"), nameField()],
    send: async (data) => {
      const wish = data.get("scope") ? { [data.get("scope")]: Number(data.get("amount")) } : { rate: null };
      if (data.get("unit") !== "records") wish.unit = data.get("unit"); // an app of a release before knows no unit
      await orderApi(`consumer/${encodeURIComponent(view.consumer)}/rate`, { ...wish, by: nameOf(data) });
      announce(`Rate of ${view.consumer}: ordered`);
      done();
    },
  });
}

/** Asks for the key that reading wants, and calls `done()` once it is kept. */
function askKey(done) {
  openDialog({ title: "Key", submit: "Use key", fields: [], label: "Key", keep: keepReadKey, wantsKey: true, send: async () => done() });
}

/** One dialog at a time. A refused key brings up the key's own field; other errors are shown as they are. */
function openDialog({ title, submit, fields, send, label = "Key for orders", keep = keepOrderKey, wantsKey = false }) {
  const dialog = byId("dialog");
  const error = h("p", { className: "error", role: "alert" });
  const key = h("input", { name: "key", type: "password", autocomplete: "off", required: wantsKey, spellcheck: "false" });
  const keyField = h("div", { hidden: !wantsKey }, field(label, key, "a key of the functions, not the master key, which opens the whole app; kept in this tab until it is closed"));
  const confirm = h("button", { type: "submit", className: "primary" }, submit);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), fields, keyField, error, h("div", { className: "buttons" }, cancel, confirm));
  form.onsubmit = async (event) => {
    event.preventDefault();
    const data = new FormData(form);
    if (!keyField.hidden) keep(data.get("key").trim());
    confirm.disabled = true;
    setText(error, "");
    try {
      await send(data);
      dialog.close();
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      if (problem.wantsKey) {
        setText(error, keyField.hidden ? `The server wants a key for orders: ${problem.message}` : `This key was not accepted: ${problem.message}`);
        keyField.hidden = false;
        key.required = true;
        key.focus();
      } else setText(error, problem.message);
    } finally {
      confirm.disabled = false;
    }
  };
  dialog.replaceChildren(form);
  dialog.showModal();
}
