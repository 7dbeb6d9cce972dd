// Processes that are alive, engines, and what happened.

import { h, replace, table } from "../dom.js";
import { ago, count } from "../format.js";
import { state } from "./parts.js";

export class Workers {
  constructor() {
    this.title = "Workers";
    this.body = h("div", {}, h("p", { class: "loading" }, "Loading …"));
    this.element = h("div", {}, h("h2", {}, "Workers"), this.body);
  }

  async refresh(api, context) {
    const [status, workers, events] = await Promise.all([
      api.get("status", { since: context.since(60) }), api.get("workers"), api.get("events", { limit: 50 }),
    ]);
    context.lineages(status.lineages);
    replace(this.body,
      table("Processes that reported lately", [
        { name: "Worker", class: "when", of: (one) => `${one.kind} ${one.id.slice(-6)}` },
        { name: "Started", class: "when", of: (one) => ago(one.started_at, context.now) },
        { name: "Last sign of life", class: "when", of: (one) => ago(one.heartbeat_at, context.now) },
        { name: "Schema", of: (one) => one.revision },
        { name: "What it says", class: "wide", of: (one) => said(one) },
      ], workers.items, "No process has reported lately."),
      h("h2", {}, "Engines"),
      table("Engines of the gateway that answered this page", [
        { name: "Engine", class: "when", of: (one) => one.name },
        { name: "State", of: (one) => one.draining ? state("drains", "warn") : state(one.healthy ? "answers" : "away", one.healthy ? "good" : "bad") },
        { name: "Running", n: true, of: (one) => count(one.running) },
        { name: "Queued", n: true, of: (one) => count(one.queued) },
        { name: "Versions", of: (one) => Object.entries(one.serving).map(([id, version]) => `${context.nameOf(id)} v${version}`).join(", ") || "–" },
        { name: "Trouble", class: "wide", of: (one) => [one.error, ...Object.values(one.failing)].filter(Boolean).join("; ") },
      ], status.engines, "No engine is configured."),
      h("h2", {}, "Events"),
      table("What happened, the latest first", [
        { name: "When", class: "when", of: (one) => ago(one.at, context.now) },
        { name: "What", of: (one) => one.name },
        { name: "Detail", class: "wide", of: (one) => Object.entries(one.detail).filter(([name, value]) => name !== "lineage_id" && value !== null).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ") },
      ], events.items, "Nothing has happened yet."));
  }

  close() {}
}

function said(worker) {
  const { report } = worker;
  if (worker.kind === "judge") {
    const alarms = report.alarms ?? [];
    return [`${count(report.scored ?? 0)} scored, ${count(report.in_hand ?? 0)} in hand `, alarms.length ? state(`alarm: ${alarms.join(", ")}`, "bad") : null];
  }
  if (worker.kind === "trainer") {
    return Object.entries(report.lineages ?? {}).map(([name, one]) => h("div", {}, `${name}: ${one.leads ? "leads" : "stands by"}`));
  }
  return report.spooling ? state("spools: Postgres is away", "bad") : "";
}
