// One session as a tree of turns; the tokens of a turn where they are asked for.

import { h, replace } from "../dom.js";
import { figure, millis, moment, words } from "../format.js";
import { chains, judged, legend, tokenClass, tokens, tree } from "../model.js";
import { score, state } from "./parts.js";

const COLOURS = [["score", "score of the turn"], ["version", "policy version"], ["probability", "probability"], ["teacher", "what the teacher says"]];

export class Session {
  constructor(id) {
    this.id = id;
    this.title = "Session";
    this.shown = "";
    this.asked = new Map();
    this.head = h("div");
    this.body = h("div", {}, h("p", { class: "loading" }, "Loading …"));
    this.element = h("div", {}, h("p", {}, h("a", { href: "#/sessions" }, "All sessions")), this.head, this.body);
  }

  async refresh(api, context) {
    this.api = context.api;
    const found = await api.get(`sessions/${encodeURIComponent(this.id)}`);
    const now = JSON.stringify(found);
    if (now === this.shown) return;
    this.shown = now;
    const name = found.external_id ?? found.id;
    replace(this.head, h("h2", {}, `Session ${name}`),
      h("p", { class: "faint" }, [found.client, found.model, `resolved by ${found.resolved_by}${found.ambiguous ? ", ambiguous" : ""}`,
        `${found.turns} turns`, found.end_reason ? `ended: ${found.end_reason}` : found.status].filter(Boolean).join(" · ")));
    if (!found.items.length) replace(this.body, h("p", { class: "empty" }, "No turn is stored of this session."));
    else replace(this.body, h("ul", { class: "tree" }, tree(found.items).map((node) => this.branch(node))));
  }

  branch(node) {
    const { turns, branches } = chains(node);
    return h("li", {}, turns.map((turn) => this.turn(turn)),
      branches.length ? h("ul", {}, branches.map((one) => this.branch(one))) : null);
  }

  turn(turn) {
    const last = judged(turn);
    const verdict = turn.verdict;
    const waits = ["ready", "leased"].includes(turn.samples[turn.samples.length - 1]?.state);
    const end = verdict === null ? (waits ? "waits for a step" : "no verdict yet")
      : verdict.outcome === "trained" ? `trained toward version ${verdict.version}` : `${verdict.outcome}: ${verdict.reason}`;
    const place = this.asked.get(turn.id) ?? h("div");
    const facts = [
      score(last?.score), state(turn.kind, turn.kind === "main" ? "good" : ""),
      h("span", {}, turn.version_min === null ? "no version" : `version ${turn.version_min === turn.version_max ? turn.version_min : `${turn.version_min}–${turn.version_max}`}`),
      h("span", {}, `${turn.prompt_len} + ${turn.completion_len} tokens`),
      h("span", {}, millis(turn.total_ms)), h("span", {}, end),
    ];
    return h("article", { class: "turn", "aria-label": `Turn at depth ${turn.depth}, ${moment(turn.created_at)}` },
      h("p", { class: "facts" }, facts),
      turn.messages.map((one) => message(one.role, words(one.content))),
      message("assistant", words(turn.reply.content), turn.reply.tool_calls),
      last ? h("p", { class: "faint" }, `Judged by ${last.judge}${last.rule ? ` (${last.rule})` : ""}${last.reason ? `: ${last.reason}` : ""}${last.hint ? ` Hint: ${last.hint}` : ""}`) : null,
      turn.feedback.map((one) => h("p", { class: "faint" }, `Feedback of ${one.source}: `, score(one.score), ` ${one.text}`)),
      h("details", { id: `why-${turn.id}` }, h("summary", {}, "Why it is what it is"), reasons(turn)),
      turn.completion_len ? h("button", { type: "button", id: `tokens-${turn.id}`, on: { click: () => this.show(turn.id, place) } }, "Tokens") : null,
      this.keep(turn.id, place));
  }

  keep(id, place) {
    this.asked.set(id, place);
    return place;
  }

  async show(id, place) {
    if (place.childElementCount) {
      place.replaceChildren();
      return;
    }
    place.replaceChildren(h("p", { class: "loading" }, "Loading the tokens …"));
    try {
      const turn = await this.api.get(`turns/${id}`, { ids: true });
      const choice = h("select", { id: `by-${id}` }, COLOURS.filter(([name]) => name !== "teacher" || turn.teacher_logprobs)
        .map(([name, label]) => h("option", { value: name }, label)));
      const shown = h("p", { class: "tokens", tabindex: "0", role: "region", "aria-label": "Sampled tokens" });
      const key = h("span", { class: "key" });
      const found = tokens(turn);
      const paint = () => {
        shown.replaceChildren(...found.map((one) =>
          h("span", { class: tokenClass(one, choice.value), title: told(one) }, one.text)));
        key.replaceChildren(...legend(found, choice.value).map(([name, label]) =>
          h("span", {}, h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), label)));
      };
      choice.addEventListener("change", paint);
      paint();
      place.replaceChildren(h("p", { class: "by" }, h("label", {}, "Colour by ", choice), key), shown);
    } catch (error) {
      place.replaceChildren(h("p", { class: "failed" }, error.message));
    }
  }

  close() {}
}

function message(role, text, calls = null) {
  const more = (calls ?? []).map((one) => h("pre", {}, `${one.function.name}(${one.function.arguments})`));
  return h("div", { class: "message" }, h("b", {}, role), text ? h("pre", {}, text) : null, more);
}

function reasons(turn) {
  const sample = turn.samples[turn.samples.length - 1];
  const lines = [
    `kind ${turn.kind} by ${turn.kind_rule} (confidence ${figure(turn.kind_confidence)})`,
    `place by ${turn.resolve_rule}`,
    turn.branch_reason ? `rendered as a branch: ${turn.branch_reason}` : null,
    turn.retry_of ? `a retry of ${turn.retry_of}` : null,
    turn.untrainable_reason ? `not to be trained on: ${turn.untrainable_reason}` : null,
    turn.stream_mismatch ? "what was streamed differs from the parsed reply" : null,
    `finish ${turn.finish_reason}, first token after ${millis(turn.first_token_ms)}, engine ${turn.engine}`,
    sample ? `sample ${sample.state}, weight ${figure(sample.weight)}${sample.version_lag === null ? "" : `, ${sample.version_lag} versions behind`}` : null,
  ];
  return h("ul", {}, lines.filter(Boolean).map((line) => h("li", {}, line)));
}

function told(token) {
  const parts = [`id ${token.id}`, `version ${token.version ?? "unknown"}`];
  if (token.logprob !== null) parts.push(`probability ${figure(Math.exp(token.logprob), 3)}`);
  if (token.teacher !== null) parts.push(`teacher's ${figure(Math.exp(token.teacher), 3)}`);
  return parts.join(", ");
}
