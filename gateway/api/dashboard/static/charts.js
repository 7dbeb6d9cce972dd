// Charts by uPlot, each with its figures in a table for those who do not see it.

import { h, table } from "./dom.js";
import { clock, figure, moment } from "./format.js";
import { apart, extent } from "./model.js";

const HEIGHT = 200;
const HUES = ["#2f7fd1", "#c9781f", "#2f9e5c", "#b2468f", "#7a6fd0", "#c2503f"];

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Names stand above the chart, each where it does not touch the one before.
function marks(lines) {
  return {
    hooks: {
      draw: (plot) => {
        const { ctx, bbox } = plot;
        const ratio = globalThis.uPlot.pxRatio;
        const seen = lines().map((line) => ({ ...line, x: plot.valToPos(line.at, "x", true) }))
          .filter((line) => line.x >= bbox.left && line.x <= bbox.left + bbox.width);
        ctx.save();
        ctx.strokeStyle = ctx.fillStyle = css("--faint");
        ctx.font = `${11 * ratio}px system-ui, sans-serif`;
        ctx.textAlign = "center";
        ctx.lineWidth = ratio;
        ctx.setLineDash([3 * ratio, 3 * ratio]);
        for (const { x } of seen) {
          // On a pixel, so that all are as bold.
          const at = Math.round(x) + 0.5;
          ctx.beginPath();
          ctx.moveTo(at, bbox.top);
          ctx.lineTo(at, bbox.top + bbox.height);
          ctx.stroke();
        }
        for (const line of apart(seen, 30 * ratio)) ctx.fillText(line.name, line.x, bbox.top - 4 * ratio);
        ctx.restore();
      },
    },
  };
}

// The legend tells the last values where nothing is pointed at.
const latest = (plot) => {
  if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
};
const LATEST = { hooks: { draw: latest, setCursor: latest } };

// A figure whose chart is kept while its data changes. `series` are {name, thin?, hue?}; a band
// names the two columns, counted from 1, between which it lies. Where no `range` is given the axis
// goes as the values do, with `floor` not above 0.
export class Chart {
  constructor(title, { series, time = true, x = "Time", digits = 2, range = null, band = null, floor = false }) {
    this.title = title;
    this.options = { series, time, x, digits, range, band, floor };
    this.place = h("div", { class: "chart", role: "img", "aria-label": title, hidden: true });
    this.figures = h("div");
    this.note = h("p", { class: "loading" }, "Loading …");
    this.id = `figures-${title.replace(/\W+/g, "-")}`;
    this.element = h("figure", {}, h("figcaption", {}, title), this.place, this.note,
      h("details", { id: this.id }, h("summary", {}, `${title}: figures`), this.figures));
    this.lines = [];
    this.plot = null;
    this.drawn = "";
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(this.place);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => this.redraw();
    this.scheme.addEventListener("change", this.recolour);
  }

  // `span` is what the axis shows at least, in the units of x.
  update(data, lines = [], span = null) {
    const now = JSON.stringify([data, lines, span]);
    if (now === this.drawn) return;
    this.drawn = now;
    this.data = data;
    this.lines = lines;
    this.span = span;
    const empty = !data[0].length;
    this.note.hidden = !empty;
    this.note.className = "empty";
    this.note.textContent = "Nothing in this stretch of time yet.";
    this.place.hidden = empty;
    this.tell(data);
    if (empty) return;
    if (this.plot) this.plot.setData(data);
    else this.draw();
  }

  tell(data) {
    const { series, x, time, digits } = this.options;
    const last = series.map((one, index) => {
      const known = data[index + 1].filter((value) => value !== null);
      return `${one.name} ${figure(known.length ? known[known.length - 1] : null, digits)}`;
    });
    this.place.setAttribute("aria-label", `${this.title}. Latest: ${last.join(", ")}.`);
    const rows = data[0].map((at, row) => ({ at, values: series.map((_, index) => data[index + 1][row]) })).slice(-200);
    const columns = [{ name: x, of: (row) => (time ? moment(row.at) : String(row.at)) },
      ...series.map((one, index) => ({ name: one.name, n: true, of: (row) => figure(row.values[index], digits) }))];
    this.figures.replaceChildren(table(this.title, columns, rows));
  }

  draw() {
    const { series, time, range, band, digits, floor } = this.options;
    const axis = { stroke: css("--text"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    const dots = this.data[0].length < 60;
    const hue = (one, index) => HUES[(one.hue ?? index) % HUES.length];
    const upward = floor ? { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.08 : 1] } : {};
    const x = time
      ? { values: (_, places, __, ___, step) => clock(places, step), space: 64 }
      : { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] };
    this.plot = new globalThis.uPlot({
      width: Math.max(240, this.place.clientWidth), height: HEIGHT, padding: [this.lines.length ? 18 : 8, 14, 0, 0],
      // As everywhere on the page, whatever the clock of whoever looks.
      tzDate: (at) => globalThis.uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      scales: { x: { time, range: (_, low, high) => this.extent(low, high) }, y: range ? { range } : upward },
      axes: [{ ...axis, ...x }, { ...axis, size: 60 }],
      cursor: { drag: { x: true, y: false } },
      legend: { markers: { fill: (plot, index) => plot.series[index].stroke(plot, index) } },
      bands: band ? [{ series: band, fill: `${HUES[0]}33` }] : [],
      series: [{ label: this.options.x, value: (_, at) => (at === null ? figure(null) : time ? moment(at) : String(at)) },
        ...series.map((one, index) => ({
          label: one.name, stroke: hue(one, index), width: one.thin ? 1 : 2,
          dash: one.thin ? [4, 3] : undefined, spanGaps: false,
          points: { show: dots && !one.thin, size: 5, fill: hue(one, index) },
          value: (_, value) => figure(value, digits),
        }))],
      plugins: [marks(() => this.lines), LATEST],
    }, this.data, this.place);
  }

  extent(low, high) {
    return extent(this.data[0], low, high, this.span, this.options.time);
  }

  redraw() {
    if (!this.plot) return;
    this.plot.destroy();
    this.plot = null;
    this.draw();
  }

  resize() {
    if (this.plot && this.place.clientWidth) this.plot.setSize({ width: this.place.clientWidth, height: HEIGHT });
  }

  close() {
    this.watch.disconnect();
    this.scheme.removeEventListener("change", this.recolour);
    this.plot?.destroy();
  }
}
