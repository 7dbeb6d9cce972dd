// Versions, training steps, how stale samples are, and when engines moved on.

import { Chart } from "../charts.js";
import { bar, h, replace, table } from "../dom.js";
import { ago, count, duration, millis, moment } from "../format.js";
import { columns, moves, ofOne } from "../model.js";
import { state, whose } from "./parts.js";

const FIRST = ["score_mean", "loss", "entropy", "kl", "grad_norm", "clip_fraction", "step_kl"];
const SHOWN = 4;
// With units; others go by their own names.
const NAMES = {
  samples: "Samples a step", score_mean: "Mean score of a step's samples", loss: "Loss", entropy: "Entropy in nats",
  kl: "KL divergence from the base model in nats", grad_norm: "Norm of the gradient before clipping",
  clip_fraction: "Share of tokens clipped", step_kl: "KL divergence of a step in nats", lr: "Learning rate",
};

export class Learning {
  constructor(_, context) {
    this.title = "Learning";
    this.charts = new Map();
    this.curves = h("div", { class: "pair" });
    this.metric = h("select", { id: "metric", on: { change: () => context.refresh() } });
    this.which = h("p", { class: "faint" });
    this.lineages = h("div", {}, h("p", { class: "loading" }, "Loading …"));
    this.stale = h("div");
    this.swaps = h("div");
    this.versions = h("div");
    this.element = h("div", {}, h("h2", {}, "Lineages"), this.lineages,
      h("h2", {}, "Training"), this.which, h("p", {}, h("label", {}, "Also show ", this.metric)), this.curves,
      h("h2", {}, "Staleness and admission"), this.stale,
      h("h2", {}, "Swaps"), this.swaps, h("h2", {}, "Versions"), this.versions);
  }

  async refresh(api, context) {
    const lineage_id = context.lineage;
    const [status, steps, stale, swaps, policies] = await Promise.all([
      api.get("status", { since: context.since(60) }),
      api.get("train-steps", { limit: 200, lineage_id }),
      api.get("staleness"),
      api.get("swaps", { limit: 30, lineage_id }),
      api.get("policies", { limit: 30, lineage_id }),
    ]);
    context.lineages(status.lineages);
    replace(this.lineages, lineages(status.lineages, context));
    replace(this.which, whose(steps.items, context));
    this.draw(ofOne(steps.items, lineage_id).reverse(), ofOne(swaps.items, lineage_id));
    replace(this.stale, admission(status.lineages), stale.items
      .filter((one) => !lineage_id || one.lineage_id === lineage_id).map((one) => staleness(one, stale)));
    replace(this.swaps, table("Engines moved from one version to another, the latest first", [
      { name: "When", class: "when", of: (one) => moment(one.ended_at) },
      { name: "Engine", class: "when", of: (one) => one.engine },
      { name: "Versions", class: "when", of: (one) => `v${one.from_version} to v${one.to_version}` },
      { name: "Outcome", of: (one) => state(one.outcome, one.outcome === "loaded" ? "good" : "bad") },
      { name: "Load", n: true, of: (one) => millis(one.load_ms) },
      { name: "Pause", n: true, of: (one) => millis(one.pause_ms) },
      { name: "Detail", class: "wide", of: (one) => one.detail ?? "" },
    ], swaps.items, "No engine has been given a version yet."));
    replace(this.versions, table("Versions", [
      { name: "Version", class: "when", of: (one) => `${one.lineage} v${one.version}` },
      { name: "State", of: (one) => state(one.state, one.state === "live" ? "good" : ["refused", "rolled_back"].includes(one.state) ? "bad" : "") },
      { name: "Kind", of: (one) => one.kind },
      { name: "Parent", of: (one) => (one.parent_version === null ? "–" : `v${one.parent_version}`) },
      { name: "Made", class: "when", of: (one) => ago(one.created_at, context.now) },
      { name: "Reason", class: "wide", of: (one) => one.reason ?? "" },
    ], policies.items));
  }

  draw(steps, swaps) {
    const names = [...new Set(steps.flatMap((one) => Object.keys(one.metrics)))].sort();
    if (this.metric.options.length !== names.length + 1) {
      const chosen = this.metric.value;
      this.metric.replaceChildren(h("option", { value: "" }, "nothing else"), ...names.map((name) => h("option", { value: name }, NAMES[name] ?? name.replaceAll("_", " "))));
      this.metric.value = names.includes(chosen) ? chosen : "";
    }
    const shown = ["samples", ...FIRST.filter((name) => names.includes(name)).slice(0, SHOWN - 1)];
    if (this.metric.value && !shown.includes(this.metric.value)) shown.push(this.metric.value);
    for (const [name, chart] of this.charts) {
      if (shown.includes(name)) continue;
      chart.close();
      chart.element.remove();
      this.charts.delete(name);
    }
    const moved = moves(swaps);
    for (const name of shown) {
      if (!this.charts.has(name)) {
        const chart = new Chart(NAMES[name] ?? name.replaceAll("_", " "), { series: [{ name: name.replaceAll("_", " ") }], digits: name === "samples" ? 0 : 4, floor: name === "samples" });
        this.charts.set(name, chart);
        this.curves.append(chart.element);
      }
      const rows = steps.map((one) => ({ at: one.ended_at, value: name === "samples" ? one.samples : one.metrics[name] }));
      this.charts.get(name).update(columns(rows, "at", ["value"]), moved);
    }
  }

  close() {
    for (const chart of this.charts.values()) chart.close();
  }
}

function lineages(found, context) {
  return table("What is served and trained", [
    { name: "Lineage", of: (one) => one.name },
    { name: "Live version", n: true, of: (one) => `v${one.live_version}` },
    { name: "Trains", of: (one) => (one.trains ? "yes" : "no") },
    { name: "Steps", n: true, of: (one) => count(one.steps) },
    { name: "Last step", class: "when", of: (one) => ago(one.last_step_at, context.now) },
    { name: "Samples ready", n: true, of: (one) => count(one.ready) },
    { name: "In a step", n: true, of: (one) => count(one.leased) },
  ], found, "No key of this tenant names a lineage.");
}

function admission(found) {
  const known = found.filter((one) => one.admission);
  if (!known.length) return null;
  return table("Admission of new trainable sessions", [
    { name: "Lineage", of: (one) => one.name },
    { name: "State", of: (one) => state(one.admission.state, { open: "good", full: "bad", over: "bad" }[one.admission.state] ?? "") },
    { name: "Capacity", n: true, of: (one) => count(one.admission.capacity) },
    { name: "Backlog", n: true, of: (one) => count(one.admission.backlog) },
    { name: "Running", n: true, of: (one) => count(one.admission.running) },
    { name: "Time of a step", n: true, of: (one) => duration(one.admission.step_s) },
  ], known);
}

function staleness(one, bound) {
  const most = Math.max(1, ...one.waiting.map((bin) => bin.samples), ...one.used.map((bin) => bin.samples));
  const histogram = (caption, bins, empty) => table(caption, [
    { name: "Versions behind", of: (bin) => (bin.lag === null ? "unknown" : `${bin.lag}${bin.lag > bound.max_lag ? " (too stale)" : ""}`) },
    { name: "Samples", n: true, of: (bin) => count(bin.samples) },
    { name: "As a bar", class: "barcell", of: (bin) => bar(bin.samples / most) },
  ], bins, empty);
  return h("section", { "aria-label": `Staleness of ${one.lineage}` },
    h("h3", {}, `${one.lineage}: at most ${bound.max_lag} versions behind, ${bound.batch} samples a step`),
    h("div", { class: "pair" }, histogram("Samples that wait", one.waiting, "No sample waits."),
      histogram("Samples of the last steps", one.used, "No step has used any yet.")));
}
