// Runs the pure functions of the dashboard on given values and prints what they say.
const { STATIC } = process.env;
const model = await import(`file://${STATIC}/model.js`);
const format = await import(`file://${STATIC}/format.js`);
const { Api } = await import(`file://${STATIC}/api.js`);
const [text] = process.argv.slice(-1);
const given = JSON.parse(text);

const answers = [
  { status: 200, headers: new Headers({ etag: '"a"' }), ok: true, json: async () => ({ n: 1 }) },
  { status: 304, headers: new Headers(), ok: false, json: async () => ({}) },
  { status: 400, headers: new Headers(), ok: false, json: async () => ({ detail: "No." }) },
];
const asked = [];
const api = new Api("k", async (url, options) => {
  asked.push([url, options.headers]);
  return answers[asked.length - 1];
});
const first = await api.get("scores", { by: "time", lineage_id: null, client: "a b" });
const second = await api.get("scores", { by: "time", client: "a b" });
const third = await api.get("scores").catch((error) => [error.status, error.message]);

console.log(JSON.stringify({
  stages: model.stages(given.funnel),
  chains: model.tree(given.turns).map((one) => {
    const found = model.chains(one);
    return [found.turns.map((turn) => turn.id), found.branches.map((branch) => branch.turn.id)];
  }),
  columns: model.columns(given.rows, "at", ["n"], 10, 0),
  extents: given.extents.map((one) => model.extent(...one)),
  buckets: [900, 86400, 604800].map((one) => model.bucket(one)),
  classes: given.tokens.map((one) => ["score", "version", "probability", "teacher"].map((by) => model.tokenClass(one, by))),
  apart: model.apart(given.lines, 30).map((one) => one.name),
  moves: model.moves(given.swaps),
  legends: ["score", "version", "probability", "teacher"].map((by) => model.legend(given.tokens, by)),
  clocks: [format.clock([86390, 86395, 86400], 5), format.clock([82800, 86400, 90000], 3600), format.clock([0, 86400], 86400)],
  formats: [format.signed(-0.5), format.signed(0), format.signed(null), format.figure(0.00012), format.millis(999.6), format.millis(1500),
    format.duration(119), format.duration(121), format.duration(7200), format.ago(null, 1), format.interval(null, 1), format.interval(-0.25, 1),
    format.words([{ type: "text", text: "a" }, { type: "image_url" }]), format.words(null)],
  asked, answers: [first, second, third],
}));
