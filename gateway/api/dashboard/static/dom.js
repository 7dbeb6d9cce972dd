// Elements are made from values, never from markup: nothing that agents said is read as HTML.

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "width") {
      element.style.width = value;
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// New content in place of the old; what had the focus has it again, and open details stay open.
export function replace(container, ...nodes) {
  const active = container.contains(document.activeElement) ? document.activeElement.id : "";
  const open = new Set([...container.querySelectorAll("details[id][open]")].map((one) => one.id));
  container.replaceChildren(...nodes.flat(Infinity).filter(Boolean));
  for (const id of open) {
    const found = document.getElementById(id);
    if (found && container.contains(found)) found.open = true;
  }
  if (active) document.getElementById(active)?.focus({ preventScroll: true });
}

export function table(caption, columns, rows, empty = "Nothing yet.") {
  if (!rows.length) return h("p", { class: "empty" }, `${caption}: ${empty.charAt(0).toLowerCase()}${empty.slice(1)}`);
  const head = columns.map((one) => h("th", { scope: "col", class: one.n ? "n" : one.class }, one.name));
  const body = rows.map((row) =>
    h("tr", {}, columns.map((one, index) =>
      h(index === 0 ? "th" : "td", { scope: index === 0 ? "row" : null, class: one.n ? "n" : one.class }, one.of(row)))));
  return h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

export function bar(share) {
  return h("span", { class: "bar", "aria-hidden": "true", width: `${Math.max(0, Math.min(1, share)) * 100}%` });
}
