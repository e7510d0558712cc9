// The parts of the page that are words and tables.
import { byId, el, replace } from "./dom.js";
import { bytes, clockTime, count, duration, moment, number, percent } from "./format.js";
import { MARKS, STATES, markSign, stateSign } from "./marks.js";
import { change, view, zoomTo } from "./view.js";

const GLYPHS = { training: "▶", finished: "✔", stalled: "‖", stopped: "■", beginning: "…", empty: "○" };

export function showHeadline(head) {
  const reading = head.share_read < 1 && !head.live;
  const { state, title, text, troubles } = reading
    ? { state: "beginning", title: "Reading the trace", text: `${percent(head.share_read)} of it is here, up to round ${head.round}.`, troubles: [] } : head.headline;
  const place = byId("headline");
  place.dataset.state = state;
  const groups = alike(troubles);
  replace(place,
    el("div", { class: "now" }, el("span", { class: "glyph", "aria-hidden": "true" }, GLYPHS[state] ?? "○"),
      el("div", {}, el("h1", {}, title), el("p", {}, text))),
    groups.length ? el("ul", { class: "troubles" }, groups.slice(0, 8).map((trouble) =>
      el("li", {}, el("b", {}, stateSign(STATES[trouble.state] ? trouble.state : "offline"), ` ${trouble.who}`),
        el("span", {}, `${trouble.state}: ${trouble.why}`), el("span", { class: "do" }, trouble.do)))) : null,
    groups.length > 8 ? el("p", { class: "faint" }, `… and ${groups.length - 8} more`) : null);
  document.title = `${title} · round ${head.round} · gruppetto`;
  const others = Object.entries(head.shards ?? {}).map(([name, url]) => el("a", { href: `${url}/dashboard/` }, ` ${name}`));
  replace(byId("run"), [[{ simulated: "simulated: ", virtual: "in virtual time " }[head.world] ?? "", head.shard ? `shard ${head.shard} of ` : "", head.run_id].join(""), ...others]);
}

// Many with the same trouble are one line.
function alike(troubles) {
  const groups = new Map();
  for (const trouble of troubles) {
    const key = JSON.stringify([trouble.state, trouble.do]);
    groups.set(key, [...(groups.get(key) ?? []), trouble]);
  }
  return [...groups.values()].flatMap((same) => (same.length < 4 ? same
    : [{ ...same[0], who: `${same.slice(0, 3).map((t) => t.who).join(", ")} and ${same.length - 3} more`, why: `${same[0].why}, and so on` }]));
}

export function showNumbers(head) {
  const tokens = head.tokens;
  const merged = tokens.consumed ? tokens.merged / tokens.consumed : null;
  const progress = head.rounds ? el("progress", { max: head.rounds, value: head.round, "aria-label": "Rounds" }) : null;
  replace(byId("numbers"),
    box("Round", head.rounds ? `${count(head.round)} / ${count(head.rounds)}` : count(head.round), progress),
    head.headline.state === "finished" ? box("Learners", String(head.known), "have ridden in this run")
      : box("Live", `${head.live_learners} of ${head.learners}`, `${head.training} training${head.crowd ? `, ${head.crowd} more not shown` : ""}`),
    box("Taking part", String(head.taking_part), "merged in the newest round"),
    box(head.simulated ? "Merged work" : "Merged tokens", percent(merged), `of ${count(tokens.consumed)} ${head.simulated ? "chip-steps" : "trained on"}`),
    ...(head.simulated ? simulated(head.simulated) : measured(head)));
  replace(byId("foot"), [
    head.began_wall_s ? `Began ${clockTime(head.began_wall_s)}` : null, `${count(head.lines)} lines of trace`,
    head.shard ? `Rounds, tokens and bytes are those of shard ${head.shard}` : null,
    head.lives > 1 ? `${head.lives} lives of the syncer` : null,
    head.parameters ? `${count(head.parameters)} parameters${fragments(head.settings)}` : null,
    head.damaged_lines ? `${head.damaged_lines} lines could not be read` : null,
  ].filter(Boolean).join(" · "));
}

function measured(head) {
  const less = head.bytes.data_parallel && head.bytes.moved ? head.bytes.data_parallel / head.bytes.moved : null;
  const evaluated = head.evaluated;
  return [evaluated ? box("Held-out loss", number(evaluated[2]), `at round ${evaluated[1]}, nats per token`)
    : head.spoilt.length ? box("Training loss", "not finite", `of ${head.spoilt.join(", ")}`) : box("Training loss", number(head.loss), "newest reported, nats per token"),
  box("Travelled", bytes(head.bytes.moved || null), less ? `data parallel: ${less.toFixed(less < 10 ? 1 : 0)} × as much` : `${bytes(head.bytes.up)} up, ${bytes(head.bytes.down)} down`)];
}

function simulated({ hours, goodput, uptime }) {
  return [box("Goodput", percent(goodput), "of the chips' time in steps"), box("Uptime", percent(uptime), hours ? `of ${duration(3600 * hours)}` : "so far")];
}

function fragments({ num_fragments: many, sync_period: period }) {
  return (many ? ` in ${count(many)} ${many === 1 ? "fragment" : "fragments"}` : "") + (many && period ? `, each synchronised once in ${count(period)} rounds` : "");
}

function box(name, value, small) {
  return el("div", { class: "number" }, el("span", {}, name), el("b", {}, value), typeof small === "string" ? el("small", {}, small) : small);
}

export function showKey() {
  const states = ["training", "waiting", "recovering", "offline"].map((state) => el("li", {}, stateSign(state), STATES[state].name));
  const beat = el("li", {}, el("span", { "aria-hidden": "true" }, "┆"), "a round with its work");
  const marks = ["died", "away", "back", "recovered", "joined", "left", "refused", "alarm", "restart", "checkpoint"]
    .map((kind) => el("li", {}, markSign(kind), MARKS[kind].name));
  replace(byId("key"), states, beat, marks);
}

const COLUMNS = [
  ["learner", (l) => el("button", { class: "name", type: "button", title: l.name }, l.name)],
  ["state", (l) => el("span", { class: "state", title: l.why }, stateSign(l.state), l.state)],
  ["step", (l) => duration(l.step_s)],
  ["rounds behind", (l) => number(l.behind, 0)],
  ["weight share", (l) => percent(l.share)], // of the newest round
  ["norm", (l) => number(l.norm)],
  ["cosine", (l) => (l.cosine === null ? "–" : (l.cosine >= 0 ? "+" : "−") + Math.abs(l.cosine).toFixed(2))],
  ["loss", (l) => (l.spoilt ? "not finite" : number(l.loss))],
  ["steps", (l) => count(l.steps)],
  ["rounds merged", (l) => count(l.merged_rounds)],
  ["not merged", (l) => el("span", { title: Object.entries(l.rejected).map(([reason, n]) => `${n} ${reason}`).join(", ") },
    count(Object.values(l.rejected).reduce((a, b) => a + b, 0)))],
];

// What a simulator has none of is no column, and what it calls a step may be many.
function columns(head) {
  if (!head?.simulated) return COLUMNS;
  const { stride } = head.simulated;
  return COLUMNS.filter(([name]) => !["norm", "cosine", "loss"].includes(name))
    .map(([name, cell]) => [stride > 1 && name.startsWith("step") ? `${{ step: "stretch", steps: "stretches" }[name] ?? name} of up to ${stride} steps` : name, cell]);
}

export function showLearners(lanes, head) {
  const shown = columns(head);
  const focused = document.activeElement?.closest?.("#learners tr")?.dataset.name;
  const rows = lanes.map((lane) => {
    const row = el("tr", { class: "pick", "data-name": lane.name, "aria-selected": String(lane.name === view.learner),
      onclick: () => change({ learner: view.learner === lane.name ? null : lane.name }) });
    row.append(...shown.map(([, cell]) => el("td", {}, cell(lane))));
    return row;
  });
  replace(byId("learners"), lanes.length ? el("table", {}, el("thead", {}, el("tr", {}, shown.map(([name]) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows))
    : el("p", { class: "none" }, "Nobody yet."));
  if (focused !== undefined) rows.find((row) => row.dataset.name === focused)?.querySelector("button").focus({ preventScroll: true });
}

export function showAlarms(alarms) {
  replace(byId("alarms"), el("h2", {}, "Alarms"), alarms.length
    ? el("ul", { class: "list" }, alarms.map((alarm) => item(alarm.t, "alarm", alarm.kind,
      [alarm.text, alarm.over_t === null || !alarm.lasts ? null : `Over after ${duration(alarm.over_t - alarm.t)}.`, lastOf(alarm.count)].filter(Boolean).join(" "))))
    : el("p", { class: "none" }, "None was raised."));
}

export function showRejections(rejections, clippings) {
  const rows = [...rejections.map((r) => ({ ...r, what: "not merged" })), ...clippings.map((r) => ({ ...r, what: "merged for less" }))];
  replace(byId("rejections"), el("h2", {}, "What the gate did not take as it was"), rows.length
    ? el("table", { class: "words" }, el("thead", {}, el("tr", {}, ["reason", "count", "what it means, what to do"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, rows.map((r) => el("tr", {}, el("td", {}, r.reason), el("td", {}, count(r.count)),
        el("td", {}, `${r.what}: ${r.advice}${r.routine ? ". Happens to healthy learners too." : ""}`)))))
    : el("p", { class: "none" }, "Everything was merged as it came."));
}

const lastOf = (count) => (count > 1 ? `The last of ${count}.` : null);

// Alarms of a kind that comes and goes are one line, the newest.
export function grouped(happenings) {
  const counts = new Map();
  for (const { kind, who } of happenings) if (kind === "alarm") counts.set(who, (counts.get(who) ?? 0) + 1);
  const said = new Set();
  return [...happenings].reverse().filter(({ kind, who }) => kind !== "alarm" || (!said.has(who) && said.add(who)))
    .map((h) => (h.kind === "alarm" && counts.get(h.who) > 1 ? { ...h, text: `${h.text} ${lastOf(counts.get(h.who))}` } : h));
}

export function showEvents(happenings, leftOut) {
  const newest = grouped(happenings);
  replace(byId("events"),
    newest.length ? el("ul", { class: "list" }, newest.map((h) => item(h.t, h.kind, h.who, h.text))) : el("p", { class: "none" }, "Nothing in this stretch."),
    leftOut ? el("p", { class: "none" }, `${count(leftOut)} more are not listed; look closer.`) : null);
}

function item(t, kind, who, text) {
  const go = (event) => {
    event.preventDefault();
    change({ cursor: t });
    const [from, to] = view.window;
    if (t < from || t > to) zoomTo(t - (to - from) / 2, t + (to - from) / 2);
    byId("timeline").scrollIntoView({ behavior: "smooth", block: "start" });
  };
  return el("li", {}, el("a", { href: `#t=${t.toFixed(3)}`, onclick: go }, moment(t)), markSign(kind, MARKS[kind]?.name ?? kind),
    el("span", { class: "who", title: who }, who), el("span", { class: "text" }, text));
}
