// Sessions, those seen last first, page by page.

import { h, replace, table } from "../dom.js";
import { ago, count } from "../format.js";
import { score } from "./parts.js";

const PAGE = 50;

export class Sessions {
  constructor(_, context) {
    this.title = "Sessions";
    this.pages = [null];
    this.filters = {};
    this.list = h("div", {}, h("p", { class: "loading" }, "Loading …"));
    this.earlier = h("button", { type: "button", on: { click: () => this.turn(1, context) } }, "Older");
    this.later = h("button", { type: "button", on: { click: () => this.turn(-1, context) } }, "Newer");
    const fields = [["name", "Session id of the client"], ["client", "Client"], ["end_user", "User"]]
      .map(([name, label]) => h("label", {}, `${label} `, h("input", { name, id: `find-${name}` })));
    const find = (event) => {
      event.preventDefault();
      this.filters = Object.fromEntries(new FormData(form));
      this.pages = [null];
      context.refresh();
    };
    const form = h("form", { class: "find", on: { submit: find } }, fields, h("button", {}, "Find"));
    this.element = h("div", {}, h("h2", {}, "Sessions"), form, this.list,
      h("p", {}, this.later, " ", this.earlier));
  }

  turn(step, context) {
    if (step > 0 && this.next) this.pages.push(this.next);
    else if (step < 0 && this.pages.length > 1) this.pages.pop();
    else return;
    context.refresh();
  }

  async refresh(api, context) {
    const cursor = this.pages[this.pages.length - 1];
    const found = await api.get("sessions", { cursor, limit: PAGE, ...this.filters });
    this.next = found.next;
    this.earlier.disabled = found.next === null;
    this.later.disabled = this.pages.length === 1;
    replace(this.list, table("Sessions, those seen last first", [
      { name: "Session", of: (one) => h("a", { href: `#/sessions/${one.id}`, id: `s-${one.id}` }, one.external_id ?? one.id) },
      { name: "Client", class: "when", of: (one) => one.client || "–" },
      { name: "User", of: (one) => one.end_user ?? "–" },
      { name: "Seen", class: "when", of: (one) => ago(one.last_seen, context.now) },
      { name: "Turns", n: true, of: (one) => count(one.turns) },
      { name: "Main", n: true, of: (one) => count(one.main_turns) },
      { name: "Scored", n: true, of: (one) => count(one.scored_turns) },
      { name: "Mean score", n: true, of: (one) => score(one.mean_score) },
      { name: "State", of: (one) => one.end_reason ?? one.status },
    ], found.items, "No session has been captured that fits."));
  }

  close() {}
}
