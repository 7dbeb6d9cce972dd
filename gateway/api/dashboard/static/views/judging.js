// Scores over time and by version, with intervals; how well judging goes.

import { Chart } from "../charts.js";
import { h, replace, table } from "../dom.js";
import { count, figure, interval, millis, share, signed } from "../format.js";
import { bucket, columns, moves, ofOne } from "../model.js";
import { score, state, whose } from "./parts.js";

const BAND = { series: [{ name: "mean" }, { name: "95 % from", thin: true, hue: 0 }, { name: "to", thin: true, hue: 0 }], band: [3, 2], range: [-1.05, 1.05] };

const part = (value) => (value === null ? figure(null) : share(value, 1));
const FIGURES = {
  judgements: ["Judgements", count], scored: ["Of them with a score", part], settled_by_rules: ["Of them settled by rules", part],
  hinted: ["Of them with a hint", part], ms_p50: ["Median time of a judgement", millis], ms_p95: ["Time of 95 % of judgements", millis],
  votes: ["Votes of the LLM", count], voted: ["Judgements with a vote that could be read", count], vote_errors: ["Votes that failed", count],
  parse_failures: ["Answered votes that could not be read", part], disagreement: ["Votes beside the most frequent one", part],
  score_drift: ["Newer half's mean score less the older's", signed], settled_drift: ["Newer half's share settled by rules less the older's", signed],
  feedback_checked: ["Turns with explicit feedback, judged without it", count], feedback_agreement: ["Of them in agreement", part],
  feedback_kappa: ["Cohen's kappa with feedback", figure], audit_checked: ["Turns judged again by the independent judge", count],
  audit_agreement: ["Of them in agreement", part], audit_kappa: ["Cohen's kappa with the independent judge", figure],
};

export class Judging {
  constructor() {
    this.title = "Judging";
    this.trend = new Chart("Mean score over time", { ...BAND });
    this.versions = new Chart("Mean score by policy version", { ...BAND, time: false, x: "version" });
    this.which = h("p", { class: "faint" });
    this.spread = h("div");
    this.groups = h("div");
    this.health = h("div", {}, h("p", { class: "loading" }, "Loading …"));
    this.element = h("div", {}, h("h2", {}, "Scores"), this.which,
      h("div", { class: "pair" }, this.trend.element, this.versions.element), this.spread, this.groups,
      h("h2", {}, "Health of judging"), this.health);
  }

  async refresh(api, context) {
    const step = bucket(context.window, 60);
    const since = context.since(step);
    const [status, byTime, byVersion, byClient, byTool, workers, swaps] = await Promise.all([
      api.get("status", { since }),
      api.get("scores", { by: "time", since, bucket_s: step, lineage_id: context.lineage }),
      api.get("scores", { by: "version", since, lineage_id: context.lineage }),
      api.get("scores", { by: "client", since, lineage_id: context.lineage }),
      api.get("scores", { by: "tool", since, lineage_id: context.lineage }),
      api.get("workers"),
      api.get("swaps", { limit: 50, lineage_id: context.lineage }),
    ]);
    context.lineages(status.lineages);
    replace(this.which, whose(byVersion.items, context));
    const moved = moves(ofOne(swaps.items, context.lineage));
    this.trend.update(columns(byTime.items, "key", ["mean", "low", "high"], step), moved, context.span(step));
    const versions = ofOne(byVersion.items, context.lineage).filter((one) => one.key !== null).reverse();
    this.versions.update(columns(versions, "key", ["mean", "low", "high"]));
    replace(this.spread, groups("Scores by policy version", "Version", byVersion.items, (one) => (one.key === null ? "unknown" : `${one.lineage} v${one.key}`)));
    replace(this.groups, h("div", { class: "pair" },
      groups("Scores by client", "Client", byClient.items, (one) => one.key || "unnamed"),
      groups("Scores by tool that the reply called", "Tool", byTool.items, (one) => one.key ?? "none")));
    replace(this.health, judges(workers.items.filter((one) => one.kind === "judge")), jobs(status));
  }

  close() {
    this.trend.close();
    this.versions.close();
  }
}

function groups(caption, name, rows, key) {
  return table(caption, [
    { name, class: "when", of: key },
    { name: "Scores", n: true, of: (one) => count(one.n) },
    { name: "Mean", n: true, of: (one) => score(one.mean) },
    { name: "95 % interval", class: "when", of: (one) => interval(one.low, one.high) },
    { name: "−1 / 0 / +1", of: (one) => [stack(one), h("span", {}, `${one.negative} / ${one.neutral} / ${one.positive}`)] },
  ], rows, "Nothing has been scored in this stretch of time.");
}

function stack(one) {
  return h("span", { class: "stack", "aria-hidden": "true" },
    [["neg", one.negative], ["zero", one.neutral], ["pos", one.positive]].map(([kind, n]) => h("span", { class: kind, width: `${(100 * n) / one.n}%` })));
}

function jobs(status) {
  return h("p", {}, `${count(status.jobs.queued)} jobs wait, ${count(status.jobs.leased)} are in hand.`);
}

function judges(found) {
  if (!found.length) return h("p", { class: "failed" }, "No judge is alive: turns wait until one is.");
  return h("div", { class: "pair" }, found.map((judge) => {
    const { health = {}, alarms = [] } = judge.report;
    return h("section", { "aria-label": `Judge ${judge.id}` },
      h("h3", {}, `Judge ${judge.id.slice(-6)} `, state(alarms.length ? `alarm: ${alarms.join(", ")}` : "no alarm", alarms.length ? "bad" : "good")),
      table("Figures of the judgements made last", [
        { name: "Figure", of: ([name]) => FIGURES[name]?.[0] ?? name.replaceAll("_", " ") },
        { name: "Value", n: true, of: ([name, value]) => (FIGURES[name]?.[1] ?? plain)(value) },
        { name: "Alarm", of: ([name]) => (alarms.includes(name) ? state("alarm", "bad") : "") },
      ], ordered(health)));
  }));
}

function plain(value) {
  return Number.isInteger(value) ? count(value) : figure(value, 3);
}

// In the order of FIGURES, those that it does not know last.
function ordered(health) {
  const names = Object.keys(FIGURES);
  const place = (name) => (names.includes(name) ? names.indexOf(name) : names.length);
  return Object.entries(health).sort(([one], [other]) => place(one) - place(other));
}
