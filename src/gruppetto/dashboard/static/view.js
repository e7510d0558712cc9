// What part of the run is looked at, and which moment: one for all charts, and in the address, so that it can be shared.
const listeners = new Set();
const NARROWEST_S = 0.05;

export const view = {
  from: 0,
  to: null, // null: as far as the run has come
  span: null, // of a window that moves with the run
  now: 0,
  cursor: null,
  learner: null,

  get window() {
    const end = Math.max(this.to ?? this.now, NARROWEST_S);
    const from = this.span !== null ? Math.max(0, end - this.span) : Math.min(this.from, end - NARROWEST_S);
    return [Math.max(0, from), end];
  },
  get follows() { return this.to === null; },
};

export const onChange = (listener) => listeners.add(listener);

export function change(what, { quiet = false } = {}) {
  const before = JSON.stringify(view.window);
  Object.assign(view, what);
  const moved = before !== JSON.stringify(view.window);
  for (const listener of listeners) listener({ moved, cursor: "cursor" in what, learner: "learner" in what });
  if (!quiet) writeAddress();
}

export function zoomTo(from, to) {
  const low = Math.max(0, Math.min(from, to));
  const high = Math.max(low + NARROWEST_S, Math.min(Math.max(from, to), Math.max(view.now, low + NARROWEST_S)));
  change({ from: low, to: high, span: null });
}

export function zoomBy(factor, around = null) {
  const [from, to] = view.window;
  const centre = around ?? view.cursor ?? (from + to) / 2;
  const low = centre - (centre - from) * factor;
  const high = centre + (to - centre) * factor;
  if (low <= 0 && high >= view.now) whole();
  else zoomTo(low, high);
}

export function pan(share) {
  const [from, to] = view.window;
  const by = Math.max(-from, Math.min(share * (to - from), view.now - to));
  zoomTo(from + by, to + by);
}

export const whole = () => change({ from: 0, to: null, span: null });
export const last = (span) => change({ to: null, span });

export function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  const number = (name) => (said.has(name) && Number.isFinite(Number(said.get(name))) ? Number(said.get(name)) : null);
  const [t, from, to] = ["t", "from", "to"].map(number);
  const what = { cursor: t, learner: said.get("learner") };
  if (from !== null && to !== null && to > from) Object.assign(what, { from, to, span: null });
  change(what, { quiet: true });
}

let writing = null;
function writeAddress() {
  clearTimeout(writing);
  writing = setTimeout(() => {
    const said = new URLSearchParams();
    if (view.cursor !== null) said.set("t", view.cursor.toFixed(3).replace(/\.?0+$/, ""));
    if (!view.follows) {
      said.set("from", view.from.toFixed(3));
      said.set("to", view.to.toFixed(3));
    }
    if (view.learner) said.set("learner", view.learner);
    const hash = said.toString();
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
  }, 200);
}
