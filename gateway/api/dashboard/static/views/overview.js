// The four questions, traffic, and how far turns got.

import { Chart } from "../charts.js";
import { bar, h, replace, table } from "../dom.js";
import { count, share } from "../format.js";
import { bucket, columns, moves, ofOne, questions, stages } from "../model.js";

export class Overview {
  constructor() {
    this.title = "Overview";
    this.tiles = h("ul", { class: "tiles" }, h("li", { class: "loading" }, "Loading …"));
    this.funnel = h("div", {}, h("p", { class: "loading" }, "Loading …"));
    this.rate = new Chart("Turns a second", { series: [{ name: "turns/s" }], digits: 3, floor: true });
    this.latency = new Chart("Latency in seconds", { series: [{ name: "median" }, { name: "95 %", thin: true, hue: 1 }], floor: true });
    this.first = new Chart("Time to first token in seconds", { series: [{ name: "median" }, { name: "95 %", thin: true, hue: 1 }], floor: true });
    this.tokens = new Chart("Tokens a second", { series: [{ name: "prompt" }, { name: "completion" }], digits: 1, floor: true });
    this.charts = [this.rate, this.latency, this.first, this.tokens];
    this.element = h("div", {},
      h("section", { "aria-labelledby": "questions" }, h("h2", { id: "questions" }, "How it goes"), this.tiles),
      h("section", { "aria-labelledby": "traffic" }, h("h2", { id: "traffic" }, "Traffic"),
        h("div", { class: "pair" }, this.charts.map((one) => one.element))),
      h("section", { "aria-labelledby": "funnel" }, h("h2", { id: "funnel" }, "How far turns got"), this.funnel));
  }

  async refresh(api, context) {
    const step = bucket(context.window);
    const [status, workers, traffic, swaps] = await Promise.all([
      api.get("status", { since: context.since(step) }),
      api.get("workers"),
      api.get("traffic", { since: context.since(step), bucket_s: step }),
      api.get("swaps", { limit: 50, lineage_id: context.lineage }),
    ]);
    context.lineages(status.lineages);
    replace(this.tiles, questions(status, workers.items, traffic, context.now).map((one) =>
      h("li", { class: `tile ${one.state}` }, h("h3", {}, one.question),
        h("p", { class: "figure" }, one.figure), h("p", {}, one.detail))));
    const rows = traffic.items.map((one) => ({
      at: one.at, rate: one.turns / step, p50: seconds(one.ms_p50), p95: seconds(one.ms_p95),
      f50: seconds(one.first_token_ms_p50), f95: seconds(one.first_token_ms_p95),
      prompt: one.prompt_tokens / step, completion: one.completion_tokens / step,
    }));
    const span = context.span(step);
    const moved = moves(ofOne(swaps.items, context.lineage));
    this.rate.update(columns(rows, "at", ["rate"], step, 0), moved, span);
    this.latency.update(columns(rows, "at", ["p50", "p95"], step), moved, span);
    this.first.update(columns(rows, "at", ["f50", "f95"], step), moved, span);
    this.tokens.update(columns(rows, "at", ["prompt", "completion"], step, 0), moved, span);
    const funnel = stages(status.funnel);
    const most = Math.max(1, funnel[0].turns);
    replace(this.funnel, table("Turns of this stretch of time, and where the others ended", [
      { name: "Stage", class: "when", of: (one) => one.name },
      { name: "Turns", n: true, of: (one) => count(one.turns) },
      { name: "Share", n: true, of: (one) => share(one.turns, funnel[0].turns) },
      { name: "As a bar", class: "barcell", of: (one) => bar(one.turns / most) },
      { name: "Not so far", class: "wide", of: (one) => Object.entries(one.lost).map(([reason, turns]) => h("div", {}, `${reason}: ${count(turns)}`)) },
    ], funnel));
  }

  close() {
    for (const one of this.charts) one.close();
  }
}

function seconds(ms) {
  return ms === null ? null : ms / 1000;
}
