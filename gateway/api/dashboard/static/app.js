// The page: a key, a view for each address, and a look at the gateway every few seconds.

import { Api, ApiError } from "./api.js";
import { h, replace } from "./dom.js";
import { moment } from "./format.js";
import { Judging } from "./views/judging.js";
import { Learning } from "./views/learning.js";
import { Overview } from "./views/overview.js";
import { Session } from "./views/session.js";
import { Sessions } from "./views/sessions.js";
import { Workers } from "./views/workers.js";

const KEY = "nextstate.admin-key";
const EVERY_MS = 4000;

const ROUTES = [
  [/^#?\/?$/, "#/", Overview],
  [/^#\/sessions$/, "#/sessions", Sessions],
  [/^#\/sessions\/([0-9a-f-]{36})$/, "#/sessions", Session],
  [/^#\/judging$/, "#/judging", Judging],
  [/^#\/learning$/, "#/learning", Learning],
  [/^#\/workers$/, "#/workers", Workers],
];

const part = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.main = part("main");
    this.timer = null;
    this.view = null;
    this.paused = false;
    this.round = 0;
    this.asking = null;
    this.names = new Map();
    this.lineage = "";
    part("leave").addEventListener("click", () => this.leave());
    part("pause").addEventListener("click", () => this.pause(!this.paused));
    part("window").addEventListener("change", () => this.refresh());
    part("lineage").addEventListener("change", () => {
      this.lineage = part("lineage").value;
      this.refresh();
    });
    globalThis.addEventListener("hashchange", () => this.open());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && !this.paused) this.refresh();
    });
    const key = sessionStorage.getItem(KEY);
    if (key) this.enter(key);
    else this.ask();
  }

  // What views go by. Times are rounded, so that equal questions have equal addresses.
  get context() {
    const page = this;
    const now = Date.now() / 1000;
    const length = Number(part("window").value);
    return {
      now, window: length, lineage: this.lineage || null, api: this.api,
      since: (step) => Math.floor((now - length) / step) * step,
      span: (step) => [Math.floor((now - length) / step) * step, Math.ceil(now / step) * step],
      refresh: () => page.refresh(),
      lineages: (found) => page.known(found),
      nameOf: (id) => page.names.get(id.replaceAll("-", "")) ?? id.slice(0, 8),
    };
  }

  known(found) {
    const names = new Map(found.map((one) => [one.id.replaceAll("-", ""), one.name]));
    if (JSON.stringify([...names]) === JSON.stringify([...this.names])) return;
    this.names = names;
    const options = found.map((one) => h("option", { value: one.id }, one.name));
    part("lineage").replaceChildren(h("option", { value: "" }, "all"), ...options);
    part("lineage").value = this.lineage;
  }

  ask(trouble = "") {
    this.close();
    part("pages").hidden = part("tools").hidden = true;
    part("notice").textContent = trouble;
    part("fresh").textContent = "";
    const field = h("input", { id: "key", name: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true });
    const form = h("form", { class: "door", on: { submit: (event) => {
      event.preventDefault();
      if (field.value.trim()) this.enter(field.value.trim());
    } } },
    h("h2", {}, "Admin key"),
    h("label", { for: "key" }, "An API key of role admin. It stays in this tab and is forgotten with it."),
    field, h("button", {}, "Open"));
    replace(this.main, form);
    field.focus();
  }

  enter(key) {
    sessionStorage.setItem(KEY, key);
    this.api = new Api(key);
    part("notice").textContent = "";
    part("pages").hidden = part("tools").hidden = false;
    this.open();
  }

  leave(trouble = "") {
    sessionStorage.removeItem(KEY);
    this.api = null;
    this.ask(trouble);
  }

  pause(paused) {
    this.paused = paused;
    part("pause").setAttribute("aria-pressed", String(paused));
    if (!paused) this.refresh();
  }

  close() {
    clearTimeout(this.timer);
    this.round += 1;
    this.asking?.abort();
    this.view?.close();
    this.view = null;
  }

  open() {
    if (!this.api) return;
    const moved = this.view !== null;
    this.close();
    const found = ROUTES.map(([pattern, link, View]) => [location.hash.match(pattern), link, View]).find(([match]) => match);
    for (const link of part("pages").querySelectorAll("a")) {
      if (found && link.getAttribute("href") === found[1]) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (!found) {
      replace(this.main, h("p", { class: "empty" }, "There is no such page."));
      return;
    }
    const [match, , View] = found;
    this.view = new View(match[1], this.context);
    document.title = `${this.view.title} · Nextstate`;
    this.main.setAttribute("aria-busy", "true");
    replace(this.main, this.view.element);
    if (moved) this.main.focus();
    this.refresh();
  }

  async refresh() {
    clearTimeout(this.timer);
    const { view, api } = this;
    if (!view || !api) return;
    const round = (this.round += 1);
    // What was asked before is not waited for: it would come in place of what is asked now.
    this.asking?.abort();
    const { signal } = (this.asking = new AbortController());
    try {
      await view.refresh({ get: (path, query) => api.get(path, query, signal) }, this.context);
      if (round !== this.round) return;
      part("notice").textContent = "";
      part("fresh").textContent = `As of ${moment(Date.now() / 1000)} UTC`;
    } catch (error) {
      if (round !== this.round) return;
      if (error instanceof ApiError && [401, 403].includes(error.status)) {
        this.leave(error.message);
        return;
      }
      if (!(error instanceof ApiError)) throw error;
      part("notice").textContent = `${error.message} Trying again.`;
    } finally {
      if (round === this.round) {
        this.main.removeAttribute("aria-busy");
        if (!this.paused && !document.hidden) this.timer = setTimeout(() => this.refresh(), EVERY_MS);
      }
    }
  }
}

new Page();
