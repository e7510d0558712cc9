// The timeline: a lane for each learner, rounds as beats, faults as marks. A canvas, so that many lanes stay fluid.
import { el } from "./dom.js";
import { moment, duration } from "./format.js";
import { MARKS } from "./marks.js";
import { linear, timeTicks } from "./scale.js";
import { colours } from "./theme.js";
import { change, pan, view, whole, zoomBy, zoomTo } from "./view.js";

const AXIS = 24;
const FLAGS = 18;

export class Lanes {
  constructor(place, said) {
    this.said = said;
    this.canvas = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": "Timeline. Arrow keys move, up and down choose a learner, plus and minus zoom, Enter shows the learner." });
    place.append(this.canvas);
    this.data = null;
    this.drag = null;
    this.chosen = -1;
    const on = (name, handler, options) => this.canvas.addEventListener(name, handler.bind(this), options);
    on("pointermove", this.#hover);
    on("pointerleave", function leave(event) { if (this.drag === null && event.pointerType !== "touch") { this.chosen = -1; change({ cursor: null }); } });
    on("pointerdown", this.#press);
    on("pointerup", this.#release);
    on("pointercancel", function cancel() { this.drag = null; this.draw(); });
    on("dblclick", () => whole());
    on("wheel", this.#wheel, { passive: false });
    on("keydown", this.#key);
    new ResizeObserver(() => this.draw()).observe(place);
  }

  show(data) {
    this.data = data;
    const flagged = new Map(data.lanes.map((lane) => [lane.name, []]));
    this.flags = [];
    for (const happening of data.happenings) {
      const lane = flagged.get(happening.who);
      if (lane && happening.kind !== "alarm") lane.push(happening);
      else this.flags.push(happening);
    }
    this.marks = flagged;
    this.draw();
  }

  // While the run goes on, as far as the data that is drawn.
  get #window() {
    return view.follows && this.data ? [this.data.from, this.data.to] : view.window;
  }

  get #row() {
    const many = this.data?.lanes.length ?? 1;
    return many > 40 ? 11 : many > 20 ? 15 : many > 8 ? 22 : 32;
  }

  draw() {
    if (!this.data) return;
    const { lanes } = this.data;
    const width = this.canvas.parentElement.clientWidth;
    const row = this.#row;
    const height = FLAGS + Math.max(1, lanes.length) * row + AXIS;
    const dense = devicePixelRatio || 1;
    this.canvas.style.height = `${height}px`;
    if (this.canvas.width !== Math.round(width * dense) || this.canvas.height !== Math.round(height * dense)) {
      this.canvas.width = Math.round(width * dense);
      this.canvas.height = Math.round(height * dense);
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.clearRect(0, 0, width, height);
    const colour = colours();
    const left = Math.min(150, Math.max(58, width * 0.12));
    const window = this.#window;
    this.left = left;
    this.x = linear(window, [left, width - 8]);
    this.back = linear([left, width - 8], window);
    this.#axis(pen, colour, width, height);
    lanes.forEach((lane, i) => this.#lane(pen, colour, lane, FLAGS + i * row, row, i));
    this.#flags(pen, colour, height);
    this.#keep();
    this.#cursor(pen, colour, height);
    this.tell();
  }

  // All but the cursor, so that a moment that moves costs one copy however many lanes there are.
  #keep() {
    this.kept ??= document.createElement("canvas");
    [this.kept.width, this.kept.height] = [this.canvas.width, this.canvas.height];
    if (!this.kept.width || !this.kept.height) return; // not laid out yet
    this.kept.getContext("2d").drawImage(this.canvas, 0, 0);
    this.keptFor = this.#sight;
  }

  get #sight() {
    return JSON.stringify([this.chosen, view.learner, this.#window]);
  }

  #repoint() {
    if (this.keptFor !== this.#sight) { this.draw(); return; }
    const pen = this.canvas.getContext("2d");
    const dense = devicePixelRatio || 1;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.drawImage(this.kept, 0, 0);
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    this.#cursor(pen, colours(), this.canvas.height / dense);
  }

  #axis(pen, colour, width, height) {
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.lineWidth = 1;
    for (const t of timeTicks(...this.#window, Math.floor(width / 100))) {
      const x = Math.round(this.x(t)) + 0.5;
      if (x < this.left - 1) continue;
      pen.strokeStyle = colour("grid");
      line(pen, x, FLAGS, x, height - AXIS + 4);
      pen.fillStyle = colour("faint");
      pen.fillText(moment(t, this.#window[1] - this.#window[0]), Math.min(x, width - 22), height - 7);
    }
  }

  #lane(pen, colour, lane, y, row, i) {
    const band = Math.max(4, Math.round(row * 0.5));
    const top = y + Math.round((row - band) / 2) - (row > 14 ? 2 : 0);
    const chosen = i === this.chosen || lane.name === view.learner;
    if (chosen) {
      pen.fillStyle = colour("still");
      pen.fillRect(0, y, this.canvas.parentElement.clientWidth, row);
    }
    if (row > 10) {
      pen.font = `${chosen ? "600 " : ""}${row > 14 ? 12 : 9.5}px system-ui, sans-serif`;
      pen.textAlign = "left";
      pen.fillStyle = colour("ink");
      pen.fillText(shortened(pen, lane.name, this.left - 12), 4, y + row / 2 + 4);
    }
    pen.save();
    pen.beginPath();
    pen.rect(this.left, y, this.canvas.parentElement.clientWidth - this.left - 8, row);
    pen.clip();
    for (const [from, to, state] of lane.stretches) this.#stretch(pen, colour, state, this.x(from), this.x(to), top, band);
    pen.fillStyle = colour("training");
    lane.busy.i.forEach((i, k) => {
      const share = lane.busy.share[k] / 100;
      const t = i * lane.busy.width;
      const x = Math.round(this.x(t)); // whole pixels, so that neighbours neither overlap nor leave a seam
      pen.globalAlpha = share > 0.9 ? 1 : 0.15 + 0.85 * share;
      pen.fillRect(x, top, Math.max(1, Math.round(this.x(t + lane.busy.width)) - x), band);
    });
    pen.globalAlpha = 1;
    this.#beats(pen, colour, lane, top + band + 1.5, Math.max(2, row - band - 8));
    pen.restore();
    for (const happening of this.marks.get(lane.name) ?? []) this.#sign(pen, colour, happening, top + band / 2, row);
  }

  #stretch(pen, colour, state, from, to, top, band) {
    const wide = Math.max(1, to - from);
    if (state === "here") {
      pen.fillStyle = colour("waiting");
      pen.globalAlpha = 0.5;
      pen.fillRect(from, top, wide, band);
      pen.globalAlpha = 1;
    } else if (state === "recovering") {
      pen.fillStyle = colour("recovering");
      pen.globalAlpha = 0.28;
      pen.fillRect(from, top, wide, band);
      pen.globalAlpha = 1;
      pen.strokeStyle = colour("recovering");
      pen.lineWidth = 2;
      pen.save();
      pen.beginPath();
      pen.rect(from, top, wide, band);
      pen.clip();
      pen.beginPath();
      for (let x = Math.max(from, this.left) - band; x < Math.min(to, 4000); x += 7) { pen.moveTo(x, top + band); pen.lineTo(x + band, top); }
      pen.stroke();
      pen.restore();
    } else if (state === "offline") {
      pen.strokeStyle = colour("offline");
      pen.lineWidth = 2;
      pen.setLineDash([5, 4]);
      line(pen, Math.max(from, this.left), top + band / 2, to, top + band / 2);
      pen.setLineDash([]);
    }
  }

  #beats(pen, colour, lane, y, height) {
    // A tick for each round that holds its work; where there are too many, how dense they are.
    const most = Math.max(1, ...lane.beats.n);
    pen.fillStyle = colour("green");
    lane.beats.i.forEach((i, k) => {
      const x = this.x(i * lane.beats.width);
      const wide = this.x((i + 1) * lane.beats.width) - x;
      pen.globalAlpha = 0.3 + 0.7 * (lane.beats.n[k] / most);
      pen.fillRect(x, y, Math.max(1, Math.min(wide > 5 ? 2.5 : wide - 0.4, wide)), Math.min(height, 6));
    });
    pen.globalAlpha = 1;
  }

  #sign(pen, colour, happening, y, row) {
    const x = this.x(happening.t);
    if (x < this.left - 1 || x > this.canvas.parentElement.clientWidth - 6) return;
    const mark = MARKS[happening.kind] ?? MARKS.round;
    pen.save();
    pen.translate(x, y);
    if (row < 16) pen.scale(0.7, 0.7);
    const path = new Path2D(mark.path);
    pen.strokeStyle = colour("card");
    pen.lineWidth = 4.5;
    pen.stroke(path);
    pen.fillStyle = mark.hollow ? colour("card") : colour(mark.colour);
    if (!mark.stroke) pen.fill(path);
    pen.strokeStyle = colour(mark.colour);
    pen.lineWidth = mark.stroke ? 2.2 : 1.6;
    pen.stroke(path);
    pen.restore();
  }

  #flags(pen, colour, height) {
    for (const happening of this.flags) {
      const x = Math.round(this.x(happening.t)) + 0.5;
      if (x < this.left || happening.kind === "round") continue;
      pen.strokeStyle = colour(MARKS[happening.kind]?.colour ?? "grey");
      pen.globalAlpha = 0.5;
      pen.setLineDash([3, 3]);
      pen.lineWidth = 1.2;
      line(pen, x, FLAGS, x, height - AXIS);
      pen.setLineDash([]);
      pen.globalAlpha = 1;
      this.#sign(pen, colour, happening, FLAGS / 2, 20);
    }
  }

  #cursor(pen, colour, height) {
    if (this.drag !== null && view.cursor !== null) {
      pen.fillStyle = colour("blue");
      pen.globalAlpha = 0.15;
      pen.fillRect(Math.min(this.x(this.drag), this.x(view.cursor)), FLAGS, Math.abs(this.x(view.cursor) - this.x(this.drag)), height - FLAGS - AXIS);
      pen.globalAlpha = 1;
    }
    if (view.cursor === null) return;
    const x = Math.round(this.x(view.cursor)) + 0.5;
    if (x < this.left) return;
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 1;
    pen.setLineDash([2, 3]);
    line(pen, x, 0, x, height - AXIS + 4);
    pen.setLineDash([]);
  }

  // The moment has moved: said at once, drawn with the next frame.
  point() {
    if (!this.data) return;
    this.tell();
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = null; this.#repoint(); });
  }

  // What stands at the cursor, in words: for eyes and for screen readers.
  tell() {
    if (view.cursor === null) {
      this.said.textContent = "Drag to look closer, double-click for the whole run. Keys: ← → ↑ ↓ + − Home Enter.";
      return;
    }
    const [from, to] = this.#window;
    const close = (to - from) / 120;
    const near = this.data.happenings.filter((h) => Math.abs(h.t - view.cursor) <= close);
    const lane = this.data.lanes[this.chosen];
    const parts = [moment(view.cursor, to - from)];
    if (lane) {
      const stretch = lane.stretches.find(([a, b]) => a <= view.cursor && view.cursor <= b);
      parts.push(`${lane.name}: ${stretch ? stretch[2].replace("here", "live") : "not here"}${stretch ? ` for ${duration(view.cursor - stretch[0])}` : ""}`);
    }
    const shown = near.filter((h) => !lane || h.who === lane.name || !this.marks.has(h.who)).slice(-3);
    parts.push(...shown.map((h) => `${h.who}: ${h.text}`));
    this.said.textContent = parts.join("  ·  ");
  }

  #where(event) {
    const box = this.canvas.getBoundingClientRect();
    const [from, to] = this.#window;
    const t = Math.max(from, Math.min(to, this.back(event.clientX - box.left)));
    return { t, lane: Math.floor((event.clientY - box.top - FLAGS) / this.#row) };
  }

  #hover(event) {
    if (!this.data) return;
    const { t, lane } = this.#where(event);
    this.chosen = lane >= 0 && lane < this.data.lanes.length ? lane : -1;
    change({ cursor: t });
  }

  #press(event) {
    if (!this.data) return;
    if (event.pointerType === "touch") { this.#hover(event); return; } // a finger points; the buttons zoom
    if (event.button !== 0) return;
    this.drag = this.#where(event).t;
    this.canvas.setPointerCapture(event.pointerId);
  }

  #release(event) {
    if (this.drag === null) return;
    const { t, lane } = this.#where(event);
    const from = this.drag;
    this.drag = null;
    if (Math.abs(this.x(from) - this.x(t)) > 6) zoomTo(from, t);
    else if (this.data.lanes[lane]) change({ learner: view.learner === this.data.lanes[lane].name ? null : this.data.lanes[lane].name });
  }

  #wheel(event) {
    if (!(event.ctrlKey || event.metaKey || event.shiftKey)) return;
    event.preventDefault();
    if (event.shiftKey) pan((event.deltaY || event.deltaX) > 0 ? 0.1 : -0.1);
    else zoomBy(event.deltaY > 0 ? 1.25 : 0.8, this.#where(event).t);
  }

  #key(event) {
    if (!this.data) return;
    const [from, to] = this.#window;
    const step = ((to - from) / 100) * (event.shiftKey ? 10 : 1);
    const at = view.cursor ?? to;
    const within = (t) => Math.max(from, Math.min(to, t));
    const moves = {
      ArrowLeft: () => change({ cursor: within(at - step) }),
      ArrowRight: () => change({ cursor: within(at + step) }),
      ArrowUp: () => this.#choose(-1),
      ArrowDown: () => this.#choose(1),
      Home: () => whole(),
      "+": () => zoomBy(0.5),
      "=": () => zoomBy(0.5),
      "-": () => zoomBy(2),
      Enter: () => { const lane = this.data.lanes[this.chosen]; if (lane) change({ learner: lane.name }); },
      Escape: () => { this.chosen = -1; change({ cursor: null, learner: null }); },
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
  }

  #choose(by) {
    this.chosen = Math.max(0, Math.min(this.data.lanes.length - 1, this.chosen + by));
    change({ cursor: view.cursor ?? this.#window[1] });
  }
}

function line(pen, x1, y1, x2, y2) {
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}

function shortened(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return `${text.slice(0, length)}…`;
}
