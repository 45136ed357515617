// Building elements. Text only ever becomes a text node, so nothing a server says can become markup.

/** An HTML element: `h("p", {className: "x", "aria-label": "y", onclick: f}, "text", child, null)`. */
function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An SVG element; numbers and strings become attributes. */
function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "className") element.setAttribute("class", value);
    else if (typeof value === "function" || name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const byId = (id) => document.getElementById(id);

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replaces the children when `key` differs from the last time, so that what is being read stays put. */
function rebuild(element, key, build) {
  const text = JSON.stringify(key);
  if (element.builtFrom === text) return false;
  element.builtFrom = text;
  element.replaceChildren(...[build()].flat().filter((child) => child !== null && child !== undefined));
  return true;
}

/** A moment in the viewer's zone; UTC in the title. */
function timeElement(at, text) {
  return h("time", { datetime: new Date(at * 1000).toISOString(), title: utcText(at) }, text);
}

function badge(reason, title) {
  const { sign, tone, text } = look(reason);
  return h("span", { className: `badge tone-${tone}`, title }, h("span", { "aria-hidden": "true" }, sign), text);
}

const chip = (text, tone = "hold", title = null) => h("span", { className: `chip tone-${tone}`, title: title ?? text }, text);

function listOf(title, texts) {
  if (!texts.length) return null;
  return h("div", {}, h("h4", {}, title), h("ul", { className: "list" }, texts.map((text) => h("li", {}, text))));
}

/** A row of choices; `choose(value)` is called on a change. */
function segments(fieldset, name, choices, chosen, choose) {
  for (const [value, text] of choices) {
    const input = h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) });
    fieldset.append(h("label", {}, input, h("span", {}, text)));
  }
}

/** Tells screen readers what changed, without moving the focus. */
function announce(text) {
  byId("announcer").textContent = text;
}
