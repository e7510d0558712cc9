// One chart over time: bands between extremes, lines of means, points, or stacked bars. All share the window and the
// cursor of the page. What is drawn is what the server sent: counts and extremes are exact, whatever the zoom.
import { el, replace, svg } from "./dom.js";
import { moment } from "./format.js";
import { linear, logarithmic, logTicks, ticks, timeTicks, usualHigh } from "./scale.js";
import { change, view, whole, zoomTo } from "./view.js";

const LEFT = 52;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 22;
const DASHES = { dashed: "dashed", dotted: "dotted" };
const SIGNS = { line: "M0 6H18", dashed: "M0 6H18", dotted: "M0 6H18", area: "M1 2H17V11H1Z", point: "M13 6A4 4 0 1 0 5 6A4 4 0 1 0 13 6", cross: "M5 2L13 10M13 2L5 10" };

// config: { title, note, format(value), zero, log, robust, marks: [...] }, where a mark is
// { name, colour, kind: "line" | "band" | "dashed" | "dotted" | "point" | "bar" | "cross", points: [{ t, width, value, low, high }] }.
// A robust chart does not let a few values far beyond the others flatten them: arrows stand where its axis ends too soon.
// Crosses are what has no place on the axis; no line leads over one.
export class Chart {
  constructor(place, { title, format, zero = false, log = false, robust = false, height = 190 }) {
    Object.assign(this, { title, format, zero, log, robust, height, marks: [], window: [0, 1], drag: null });
    this.note = el("span", { class: "note" });
    this.legend = el("ul", { class: "legend" });
    this.svg = svg("svg", { role: "img", tabindex: "0" });
    this.said = el("p", { class: "said" });
    this.card = el("article", { class: place.classList.contains("inner") ? "chart" : "card chart" },
      el("header", {}, el("h2", {}, title), this.note), this.legend, this.svg, this.said);
    place.append(this.card);
    this.svg.addEventListener("pointermove", (event) => this.#hover(event));
    this.svg.addEventListener("pointerleave", (event) => { if (this.drag === null && event.pointerType !== "touch") change({ cursor: null }); });
    this.svg.addEventListener("pointerdown", (event) => this.#press(event));
    this.svg.addEventListener("pointerup", (event) => this.#release(event));
    this.svg.addEventListener("pointercancel", () => this.#letGo());
    this.svg.addEventListener("dblclick", () => whole());
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg.parentElement);
  }

  hide(hidden) { this.card.hidden = hidden; }

  show(marks, window, note = "") {
    this.marks = marks.filter((mark) => mark.points.length);
    this.window = window;
    this.says = note;
    this.note.textContent = note;
    replace(this.legend, marks.map((mark) => el("li", { class: `c-${mark.colour}` }, sign(mark), mark.name)));
    this.draw();
  }

  draw() {
    const width = Math.max(240, this.svg.parentElement.clientWidth - 36);
    const height = this.height;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.x = linear(this.window, [LEFT, width - RIGHT]);
    this.back = linear([LEFT, width - RIGHT], this.window);
    if (!this.marks.length) {
      this.svg.setAttribute("aria-label", `${this.title}: nothing yet`);
      replace(this.svg, svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "empty" }, "nothing yet"));
      return;
    }
    const [low, high] = this.#range();
    const place = (this.log ? logarithmic : linear)([low, high], [height - BOTTOM, TOP]);
    this.y = this.robust ? (value) => place(Math.min(value, high)) : place;
    const drawn = [this.#axes(width, height, low, high)];
    this.clip = { from: this.window[0], to: this.window[1] };
    this.breaks = this.marks.filter((mark) => mark.kind === "cross").flatMap((mark) => mark.points.map((p) => p.t));
    for (const mark of this.marks) drawn.push(...this.#mark(mark, height));
    const beyond = this.robust ? this.#beyond(high) : [];
    this.note.textContent = beyond.length ? `${this.says}; ▲ goes beyond` : this.says;
    drawn.push(...beyond);
    this.cursorLine = svg("line", { class: "cursor", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    this.brush = svg("rect", { class: "c-blue band", y: TOP, height: height - BOTTOM - TOP, width: 0 });
    replace(this.svg, drawn.flat(), this.brush, this.cursorLine);
    this.svg.setAttribute("aria-label", `${this.title}. ${this.#summary()}`);
    this.point();
  }

  point() {
    if (!this.cursorLine || !this.marks.length) { this.said.textContent = ""; return; }
    const t = view.cursor;
    const inside = t !== null && t >= this.window[0] && t <= this.window[1];
    this.cursorLine.setAttribute("visibility", inside ? "visible" : "hidden");
    if (inside) { this.cursorLine.setAttribute("x1", this.x(t)); this.cursorLine.setAttribute("x2", this.x(t)); }
    this.said.textContent = inside ? `${moment(t, this.window[1] - this.window[0])}  ${this.#reading(t)}` : this.#summary();
  }

  #summary() {
    return this.marks.map((mark) => (mark.kind === "cross" ? `${mark.name}: ${times(mark.points)}` : `${mark.name} ${this.format(mark.points.at(-1).value)}`)).join(" · ");
  }

  #reading(t) {
    return this.marks.map((mark) => {
      if (mark.kind === "cross") return `${mark.name}: ${times(mark.points)}`;
      const point = nearest(mark.points, t);
      const spread = point.high !== undefined && point.high > point.low ? ` (${this.format(point.low)} – ${this.format(point.high)})` : "";
      return `${mark.name} ${this.format(point.value)}${spread}${point.label ? `, ${point.label}` : ""}`;
    }).join(" · ");
  }

  #range() {
    const placed = this.marks.filter((mark) => mark.kind !== "cross");
    const values = placed.flatMap((mark) => mark.points.flatMap((p) => (mark.kind === "band" ? [p.low, p.high] : [p.top ?? p.value])));
    if (!values.length) return [0, 1];
    let low = values.reduce((a, b) => Math.min(a, b), Infinity);
    let high = this.robust ? usualHigh(this.#tops()) : values.reduce((a, b) => Math.max(a, b), -Infinity);
    if (this.log) {
      const positive = values.filter((value) => value > 0);
      low = Math.max(positive.reduce((a, b) => Math.min(a, b), Infinity), high / 1e6);
      return low < high ? [low, high * 1.4] : [high / 10 || 0.1, high * 2 || 1];
    }
    if (this.zero) low = Math.min(0, low);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [this.zero && low === 0 ? 0 : low - room, high + room];
  }

  #axes(width, height, low, high) {
    const rows = this.log ? logTicks(low, high) : ticks(low, high, 4);
    const lines = rows.map((value) => [
      svg("line", { class: "gridline", x1: LEFT, x2: width - RIGHT, y1: this.y(value), y2: this.y(value) }),
      svg("text", { x: LEFT - 7, y: this.y(value) + 3.5, "text-anchor": "end" }, short(this.format(value))),
    ]);
    const columns = timeTicks(...this.window, Math.floor(width / 110)).map((t) =>
      svg("text", { x: this.x(t), y: height - 5, "text-anchor": "middle" }, moment(t, this.window[1] - this.window[0])));
    return [...lines.flat(), ...columns];
  }

  #mark(mark, height) {
    const colour = `c-${mark.colour}`;
    if (mark.kind === "bar") {
      const wide = usualGap(mark.points, 0.5);
      return mark.points.map((p) => {
        const [x, end] = [Math.max(LEFT, this.x(p.t)), this.x(p.t + Math.max(p.width, 0.85 * wide))];
        const top = this.y(p.top);
        return svg("rect", { class: `area ${colour}`, x, y: top, width: Math.max(0.7, end - x - (end - x > 4 ? 1 : 0)), height: Math.max(0, this.y(p.top - p.value) - top) });
      });
    }
    if (mark.kind === "cross") {
      return mark.points.map((p) => svg("path", { class: `stroke ${colour}`, d: `M${this.#at(p)} ${TOP + 5}m-4-4l8 8m0-8l-8 8` }, svg("title", {}, mark.name)));
    }
    if (mark.kind === "point") {
      const path = svg("path", { class: `stroke ${colour}`, d: this.#line([mark.points]) });
      return [path, ...mark.points.map((p) => svg("circle", { class: `dot ${colour}`, cx: this.x(p.t), cy: this.y(p.value), r: mark.points.length > 60 ? 2 : 3.4 }))];
    }
    const runs = mark.sum ? [mark.points] : unbroken(mark.points, this.breaks);
    const found = [];
    if (mark.kind === "band") {
      const outline = runs.map((run) => {
        const there = run.map((p) => `${this.#at(p)} ${this.y(p.high).toFixed(1)}`).join("L");
        const back = run.map((p) => `${this.#at(p)} ${this.y(p.low).toFixed(1)}`).reverse().join("L");
        return `M${there}L${back}Z`;
      }).join("");
      found.push(svg("path", { class: `band ${colour}`, d: outline }));
    }
    found.push(svg("path", { class: `stroke ${colour} ${DASHES[mark.kind] ?? ""}`, d: this.#line(runs) }));
    return found;
  }

  // The highest of everything that is drawn at a moment: of bars the top of the stack.
  #tops() {
    const tops = new Map();
    for (const p of this.marks.flatMap((mark) => mark.points)) tops.set(p.t, Math.max(tops.get(p.t) ?? 0, p.top ?? p.high ?? p.value));
    return [...tops.values()];
  }

  #beyond(end) {
    const [above, title] = [new Map(), (value) => svg("title", {}, this.format(value))];
    for (const mark of this.marks) for (const p of mark.points) if ((p.top ?? p.high ?? p.value) > end) above.set(this.#at(p), Math.max(above.get(this.#at(p)) ?? 0, p.top ?? p.high ?? p.value));
    return [...above].map(([x, value]) => svg("path", { class: "beyond", d: `M${x} ${TOP - 7}l5 7h-10Z` }, title(value)));
  }

  #line(runs) {
    return runs.map((run) => `M${run.map((p) => `${this.#at(p)} ${this.y(p.value).toFixed(1)}`).join("L")}${run.length === 1 ? "h.01" : ""}`).join("");
  }

  #at(point) {
    const middle = point.t + (point.width ?? 0) / 2;
    return this.x(Math.max(this.window[0], Math.min(this.window[1], middle))).toFixed(1);
  }

  #time(event) {
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * this.svg.viewBox.baseVal.width;
    return Math.max(this.window[0], Math.min(this.window[1], this.back ? this.back(x) : 0));
  }

  #hover(event) {
    if (!this.marks.length) return;
    const t = this.#time(event);
    if (this.drag !== null) {
      const [a, b] = [this.x(this.drag), this.x(t)].sort((p, q) => p - q);
      this.brush.setAttribute("x", a);
      this.brush.setAttribute("width", b - a);
    }
    change({ cursor: t });
  }

  #press(event) {
    if (!this.marks.length) return;
    if (event.pointerType === "touch") { this.#hover(event); return; }
    if (event.button !== 0) return;
    this.drag = this.#time(event);
    this.svg.setPointerCapture(event.pointerId);
  }

  #release(event) {
    if (this.drag === null) return;
    const [from, to] = [this.drag, this.#time(event)];
    this.#letGo();
    if (Math.abs(this.x(from) - this.x(to)) > 6) zoomTo(from, to);
  }

  #letGo() {
    this.drag = null;
    this.brush?.setAttribute("width", 0);
  }

  #key(event) {
    const step = (this.window[1] - this.window[0]) / 100;
    const at = view.cursor ?? this.window[1];
    const moves = { ArrowLeft: -step, ArrowRight: step };
    if (!(event.key in moves)) return;
    event.preventDefault();
    change({ cursor: Math.max(this.window[0], Math.min(this.window[1], at + moves[event.key] * (event.shiftKey ? 10 : 1))) });
  }
}

// 4.000 on an axis is 4.
const short = (text) => text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

// Columns of the server as points; value is the mean, or the sum where only that has a meaning.
export function points(columns, map = (value) => value) {
  if (!columns) return [];
  const value = columns.mean ?? columns.sum;
  return columns.t.map((t, i) => ({
    t, width: columns.width, value: map(value[i]), count: columns.n[i],
    low: map(columns.low ? columns.low[i] : value[i]), high: map(columns.high ? columns.high[i] : value[i]),
  }));
}

function sign(mark) {
  const kind = { band: "line", bar: "area" }[mark.kind] ?? mark.kind;
  const filled = kind === "area";
  return svg("svg", { width: 18, height: 12, "aria-hidden": "true" },
    svg("path", { d: SIGNS[kind], class: filled ? "area" : kind === "point" ? "dot" : `stroke ${DASHES[kind] ?? ""}` }));
}

const times = (points) => { const sum = points.reduce((all, p) => all + p.value, 0); return `${sum} ${sum === 1 ? "time" : "times"}`; };

function unbroken(points, breaks = []) {
  // A line does not bridge a stretch in which nothing was measured, or what was not finite.
  const usual = usualGap(points, 0.9);
  const runs = [];
  points.forEach((p, i) => {
    const broken = breaks.some((t) => i && points[i - 1].t < t && t <= p.t);
    if (i && !broken && p.t - points[i - 1].t <= 6 * Math.max(usual, p.width ?? 0)) runs.at(-1).push(p);
    else runs.push([p]);
  });
  return runs;
}

function usualGap(points, share) {
  const gaps = points.slice(1).map((p, i) => p.t - points[i].t).sort((a, b) => a - b);
  return gaps[Math.floor(gaps.length * share)] ?? 0;
}

function nearest(points, t) {
  let [low, high] = [0, points.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].t + (points[middle].width ?? 0) < t) low = middle + 1;
    else high = middle;
  }
  const before = points[low - 1];
  return before && Math.abs(before.t - t) < Math.abs(points[low].t - t) ? before : points[low];
}
