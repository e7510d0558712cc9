// What a mark looks like, on the timeline, in its key and in the list: a shape for each kind, a colour besides.
import { svg } from "./dom.js";

export const MARKS = {
  died: { colour: "offline", name: "process died", path: "M-4-4L4 4M4-4L-4 4", stroke: true },
  away: { colour: "offline", name: "went away", path: "M-4.5-3.5H4.5L0 4.5Z" },
  back: { colour: "recovering", name: "is back", path: "M-4.5 3.5H4.5L0-4.5Z" },
  recovered: { colour: "green", name: "takes part again", path: "M0-5L5 0L0 5L-5 0Z" },
  joined: { colour: "blue", name: "joined", path: "M-5 0H5M0-5V5", stroke: true },
  left: { colour: "grey", name: "left", path: "M-4-1.5H4V1.5H-4Z" },
  refused: { colour: "pink", name: "not merged", path: "M-4-4H4V4H-4Z", hollow: true },
  alarm: { colour: "red", name: "alarm", path: "M0-5L5 4H-5Z", hollow: true },
  restart: { colour: "red", name: "syncer started again", path: "M4-2.2A4.6 4.6 0 1 0 4.6 1M4.6-5V-1.6H1.2", stroke: true },
  checkpoint: { colour: "blue", name: "checkpoint", path: "M-3-5V5M-3-5H4.5L2-2.5L4.5 0H-3", stroke: true },
  round: { colour: "blue", name: "round", path: "M-3 0A3 3 0 1 0 3 0A3 3 0 1 0 -3 0Z" },
};

export const STATES = {
  training: { colour: "training", name: "training" },
  waiting: { colour: "waiting", name: "waiting" },
  recovering: { colour: "recovering", name: "recovering" },
  offline: { colour: "offline", name: "offline" },
  left: { colour: "grey", name: "left" },
};

export function markSign(kind, label = null) {
  const mark = MARKS[kind] ?? MARKS.round;
  const line = mark.stroke || mark.hollow;
  return svg("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", role: label ? "img" : null, "aria-label": label, "aria-hidden": label ? null : "true" },
    svg("path", { d: mark.path, fill: line ? "none" : `var(--${mark.colour})`, stroke: line ? `var(--${mark.colour})` : "none", "stroke-width": 2 }));
}

export function stateSign(state) {
  const shape = {
    training: svg("rect", { x: 0, y: 2, width: 16, height: 10, rx: 2, fill: "var(--training)" }),
    waiting: svg("rect", { x: 1, y: 3, width: 14, height: 8, rx: 2, fill: "none", stroke: "var(--grey)", "stroke-width": 1.6 }),
    recovering: svg("path", { d: "M0 12L5 2H9L4 12ZM8 12L13 2H16L11 12Z", fill: "var(--recovering)" }),
    offline: svg("path", { d: "M0 7H16", stroke: "var(--offline)", "stroke-width": 2.4, "stroke-dasharray": "4 3" }),
    left: svg("circle", { cx: 8, cy: 7, r: 2, fill: "var(--grey)" }),
  }[state] ?? svg("circle", { cx: 8, cy: 7, r: 2, fill: "var(--grey)" });
  return svg("svg", { width: 16, height: 14, viewBox: "0 0 16 14", "aria-hidden": "true" }, shape);
}
