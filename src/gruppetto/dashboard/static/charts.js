// Which charts there are, and what of the server's data each of them shows.
import { byId, el, replace } from "./dom.js";
import { Chart, points } from "./chart.js";
import { bytes, duration, number, percent } from "./format.js";

const PHASES = [
  ["quorum_s", "waiting for the quorum", "grey"],
  ["grace_spent_s", "grace window", "orange"],
  ["merge_s", "merge", "blue"],
  ["persist_s", "persist", "green"],
  ["publish_s", "publish", "pink"],
];
const DETAIL = [
  ["step_s", "Step time", "blue", duration],
  ["behind", "Rounds behind", "orange", (v) => number(v, 1)],
  ["share", "Weight share", "green", percent],
  ["norm", "Norm of its outer gradient", "sky", number],
  ["cosine", "Cosine against the momentum", "pink", (v) => number(v, 2)],
  ["loss", "Loss on its own batch", "red", number],
];

export class Charts {
  constructor(place) {
    this.loss = new Chart(place, { title: "Loss", format: number });
    this.part = new Chart(place, { title: "Live, taking part", format: (v) => number(v, 1), zero: true });
    this.merged = new Chart(place, { title: "Merged work", format: percent, zero: true });
    this.anatomy = new Chart(place, { title: "A round, phase by phase", format: duration, zero: true, robust: true });
    this.pace = new Chart(place, { title: "Time per round", format: duration, zero: true, robust: true });
    this.moved = new Chart(place, { title: "Travelled so far", format: bytes, log: true });
    this.all = [this.loss, this.part, this.merged, this.anatomy, this.pace, this.moved];
  }

  show(data, head) {
    const { series } = data;
    const window = [data.from, data.to];
    const evaluated = data.evaluations.map(([t, round, loss]) => ({ t, value: loss, label: `round ${round}` }));
    this.loss.show([
      { name: "of the learners", colour: "sky", kind: "band", points: points(series.loss) },
      { name: "held out, global model", colour: "red", kind: "point", points: evaluated },
      ...(series.spoilt.t.length ? [{ name: "not finite", colour: "red", kind: "cross", points: points(series.spoilt) }] : []),
    ], window, "nats per token");
    this.part.show([
      { name: "live", colour: "grey", kind: "dashed", points: points(series.live) },
      { name: "merged in a round", colour: "blue", kind: "band", points: points(series.participants) },
    ], window, "learners");
    this.merged.show([{ name: "merged of what was trained on", colour: "green", kind: "line", points: share(series.merged, series.consumed) }], window, "running share in this stretch");
    this.anatomy.show([...stacked(series), { name: "grace window given", colour: "red", kind: "dotted", points: points(series.grace_s).map((p) => ({ ...p, value: p.value, low: p.value, high: p.value })) }], window, "mean of each stretch");
    this.pace.show([{ name: "from one round to the next", colour: "blue", kind: "band", points: points(series.pace_s) }], window, "mean of each stretch");
    for (const chart of [this.loss, this.moved]) chart.hide(Boolean(head?.simulated)); // nothing was trained, nothing travelled
    const total = (columns, by = 1) => runningSum(columns, by);
    const dp = data.data_parallel_bytes_a_step;
    this.moved.show([
      { name: "up", colour: "blue", kind: "line", sum: true, points: total(series.up) },
      { name: "down", colour: "green", kind: "dashed", sum: true, points: total(series.down) },
      ...(dp ? [{ name: "data parallel, for the same steps", colour: "red", kind: "dotted", sum: true, points: total(series.steps, dp) }] : []),
    ], window, "since the beginning of this stretch");
  }

  point() { for (const chart of this.all) chart.point(); }
  draw() { for (const chart of this.all) chart.draw(); }
}

// One learner's measures, below the table.
export class Detail {
  constructor(place) { this.place = place; this.name = null; this.charts = []; }

  show(data) {
    if (!data) { this.name = null; this.charts = []; replace(this.place); return; }
    if (data.name !== this.name) {
      this.name = data.name;
      const grid = el("div", { class: "grid inner" });
      replace(this.place, el("h3", {}, data.name), grid);
      this.charts = DETAIL.map(([, title, , format]) => new Chart(grid, { title, format, height: 130 }));
    }
    DETAIL.forEach(([key, , colour], i) => this.charts[i].show(
      [{ name: data.meaning[key], colour, kind: "band", points: points(data.series[key]) }], [data.from, data.to]));
  }

  point() { for (const chart of this.charts) chart.point(); }
  draw() { for (const chart of this.charts) chart.draw(); }
}

function stacked(series) {
  const tops = new Map();
  return PHASES.map(([key, name, colour]) => ({
    name, colour, kind: "bar",
    points: points(series[key]).map((p) => {
      const top = (tops.get(p.t) ?? 0) + p.value;
      tops.set(p.t, top);
      return { ...p, top };
    }),
  }));
}

function runningSum(columns, by) {
  let sum = 0;
  return columns.t.map((t, i) => { sum += columns.sum[i] * by; return { t, width: columns.width, value: sum }; }).filter((p) => p.value > 0);
}

export function share(part, of) {
  // A slot may hold one without the other: what is merged was trained on before.
  const slots = new Map();
  part.t.forEach((t, i) => slots.set(t, [part.sum[i], 0]));
  of.t.forEach((t, i) => slots.set(t, [slots.get(t)?.[0] ?? 0, of.sum[i]]));
  let [have, all] = [0, 0];
  return [...slots].sort(([a], [b]) => a - b).map(([t, [merged, consumed]]) => {
    have += merged;
    all += consumed;
    return { t, width: of.width, value: all ? Math.min(1, have / all) : 0 };
  });
}

export const chartsIn = () => new Charts(byId("charts"));
