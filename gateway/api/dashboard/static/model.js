// What the views show, worked out from what the admin API says. Pure.

import { ago, count, duration } from "./format.js";

// The last judgement that is done.
export function judged(turn) {
  const done = turn.judgements.filter((one) => one.state === "done");
  return done.length ? done[done.length - 1] : null;
}

// Roots in order; a turn whose parent is not among them is a root too.
export function tree(turns) {
  const nodes = new Map(turns.map((turn) => [turn.id, { turn, children: [] }]));
  const roots = [];
  for (const node of nodes.values()) {
    const parent = node.turn.parent_id === null ? undefined : nodes.get(node.turn.parent_id);
    (parent ? parent.children : roots).push(node);
  }
  return roots;
}

// Chains of single children stand below each other, so that a long session is no deep tree.
export function chains(node) {
  const line = [node];
  while (line[line.length - 1].children.length === 1) line.push(line[line.length - 1].children[0]);
  return { turns: line.map((one) => one.turn), branches: line[line.length - 1].children };
}

// From what was served to what was trained on; `lost` is what did not come so far, with reasons.
export function stages(funnel) {
  const { score_zero: zero = 0, no_next_state: _, ...unscored } = funnel.unscored;
  return [
    { name: "Served", turns: funnel.turns, lost: {} },
    { name: "Main line", turns: funnel.main, lost: present({ "side calls": funnel.side, "not decided yet": funnel.unknown }) },
    { name: "With a next state", turns: funnel.with_next_state, lost: present({ "nothing followed": funnel.main - funnel.with_next_state }) },
    {
      name: "Scored", turns: funnel.scored,
      lost: present({ "being judged": funnel.judging, ...unscored }),
    },
    {
      name: "Trained on", turns: funnel.trained,
      lost: present({
        "waiting for a step": funnel.samples.ready + funnel.samples.leased,
        score_zero: zero, ...funnel.untrainable, ...funnel.dropped,
      }),
    },
  ];
}

function present(counts) {
  return Object.fromEntries(Object.entries(counts).filter(([, value]) => value > 0));
}

// Each token with its version: spans are [version, start, end).
export function tokens(turn) {
  const score = judged(turn)?.score ?? null;
  return turn.tokens.map((text, index) => {
    const span = turn.spans.find(([, start, end]) => start <= index && index < end);
    const logprob = turn.logprobs[index] ?? null;
    return {
      text, score, id: turn.sampled_ids[index], version: span ? span[0] : null, logprob,
      teacher: turn.teacher_logprobs ? turn.teacher_logprobs[index] : null,
    };
  });
}

export function tokenClass(token, by) {
  if (by === "version") return token.version === null ? "t-none" : `t-v${token.version % 6}`;
  if (by === "probability") {
    if (token.logprob === null) return "t-none";
    const p = Math.exp(token.logprob);
    return p < 0.1 ? "t-p0" : p < 0.5 ? "t-p1" : "t-p2";
  }
  if (by === "teacher") {
    if (token.teacher === null || token.logprob === null) return "t-none";
    const gain = token.teacher - token.logprob;
    return gain > 0.1 ? "t-pos" : gain < -0.1 ? "t-neg" : "t-zero";
  }
  return token.score === null ? "t-none" : token.score > 0 ? "t-pos" : token.score < 0 ? "t-neg" : "t-zero";
}

// What the colours of these tokens mean: [class, meaning], each once, in an order that stays.
export function legend(found, by) {
  const words = {
    score: { "t-pos": "above 0", "t-zero": "0", "t-neg": "below 0", "t-none": "not scored" },
    probability: { "t-p0": "below 0.1", "t-p1": "0.1 to 0.5", "t-p2": "above 0.5", "t-none": "unknown" },
    teacher: { "t-pos": "the teacher finds it likelier", "t-zero": "as likely", "t-neg": "less likely", "t-none": "unknown" },
  };
  if (by === "version") {
    const versions = [...new Set(found.map((one) => one.version))].sort((one, other) => (one ?? -1) - (other ?? -1));
    return versions.map((version) => [tokenClass({ version }, by), version === null ? "unknown" : `version ${version}`]);
  }
  const classes = new Set(found.map((one) => tokenClass(one, by)));
  return Object.entries(words[by]).filter(([name]) => classes.has(name));
}

// The four questions, each with a state and the reason for it.
export function questions(status, workers, traffic, now) {
  const engines = status.engines;
  const up = engines.filter((one) => one.healthy).length;
  const judges = workers.filter((one) => one.kind === "judge");
  const trainers = workers.filter((one) => one.kind === "trainer");
  const alarms = [...new Set(judges.flatMap((one) => one.report.alarms ?? []))].sort();
  const waiting = status.jobs.queued + status.jobs.leased;
  const oldest = status.jobs.oldest_at === null ? 0 : Math.max(0, now - status.jobs.oldest_at);
  const learning = status.lineages.filter((one) => one.trains);
  const last = learning.map((one) => one.last_step_at).filter((one) => one !== null);
  return [
    {
      question: "Is it serving?", state: up === engines.length && up ? "good" : up ? "warn" : "bad",
      figure: `${up} of ${engines.length} engines`, detail: rate(traffic),
    },
    {
      question: "Is it capturing?", state: status.spooling ? "warn" : status.funnel.turns ? "good" : "",
      figure: `${count(status.funnel.turns)} turns`,
      detail: status.spooling ? "Postgres is away: turns wait in the spool" : `${count(status.funnel.trainable)} can be trained on`,
    },
    {
      question: "Is it judging?", state: !judges.length ? "bad" : alarms.length ? "bad" : oldest > 600 ? "warn" : "good",
      figure: judges.length ? `${count(waiting)} waiting` : "no judge is alive",
      detail: alarms.length ? `alarm: ${alarms.join(", ")}` : waiting ? `the oldest for ${duration(oldest)}` : "nothing waits",
    },
    {
      question: "Is it learning?", state: !learning.length ? "" : !trainers.length ? "bad" : "good",
      figure: learning.length ? learning.map((one) => `${one.name} v${one.live_version}`).join(", ") : "nothing trains",
      detail: !trainers.length ? "no trainer is alive" : last.length ? `last step ${ago(Math.max(...last), now)}` : "no step yet",
    },
  ];
}

function rate(traffic) {
  if (!traffic.items.length) return "no turn lately";
  const turns = traffic.items.reduce((total, one) => total + one.turns, 0);
  const stretch = traffic.items[traffic.items.length - 1].at - traffic.items[0].at + traffic.bucket_s;
  return `${(turns / stretch).toFixed(2)} turns a second`;
}

// Columns for a chart: [x, …series], where steps of time without a row have `gap`.
export function columns(rows, x, names, step = null, gap = null) {
  const out = [[], ...names.map(() => [])];
  let last = null;
  for (const row of rows) {
    if (step !== null && last !== null && row[x] - last > step) {
      out[0].push(last + step);
      names.forEach((_, index) => out[index + 1].push(gap));
      if (row[x] - last > 2 * step) {
        out[0].push(row[x] - step);
        names.forEach((_, index) => out[index + 1].push(gap));
      }
    }
    last = row[x];
    out[0].push(row[x]);
    names.forEach((name, index) => out[index + 1].push(row[name] ?? null));
  }
  return out;
}

// The step that gives about `most` points of a stretch.
export function bucket(seconds, most = 180) {
  const steps = [5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 86400];
  return steps.find((step) => seconds / step <= most) ?? 86400;
}

// Rows of one lineage, whose versions are its own: the chosen one, else that of the first row.
export function ofOne(rows, lineage) {
  const id = lineage ?? rows[0]?.lineage_id;
  return rows.filter((one) => one.lineage_id === id);
}

// Marks on a time line: where engines began to have another version. Those of several engines that
// follow one another are one.
export function moves(swaps) {
  const marks = [];
  const loaded = swaps.filter((one) => one.outcome === "loaded");
  for (const one of loaded.sort((first, other) => first.ended_at - other.ended_at)) {
    const name = `v${one.to_version}`;
    if (marks[marks.length - 1]?.name !== name) marks.push({ at: one.ended_at, name });
  }
  return marks;
}

// What an axis shows: from `low` to `high` of the places `at` and all of `span`, with room beside.
// For a single place the library's `high` is years away.
export function extent(at, low, high, span, time) {
  const [first, last] = at.length === 1 ? [at[0], at[0]] : [low, high];
  if (span) return [Math.min(first ?? span[0], span[0]), Math.max(last ?? span[1], span[1])];
  if (first === null) return [0, 1];
  const room = Math.max((last - first) * 0.03, time ? 60 : 0.5);
  return [first - room, last + room];
}

// Those of `lines`, left to right by `x`, that stand at least `room` from the one kept before.
export function apart(lines, room) {
  const kept = [];
  for (const line of [...lines].sort((one, other) => one.x - other.x)) {
    if (!kept.length || line.x - kept[kept.length - 1].x >= room) kept.push(line);
  }
  return kept;
}
