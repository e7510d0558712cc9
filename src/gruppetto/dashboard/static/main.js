// The page: news come in, a window of the run is fetched, everything draws it.
import { byId, el, replace } from "./dom.js";
import { Detail, chartsIn } from "./charts.js";
import { Lanes } from "./lanes.js";
import { showAlarms, showEvents, showHeadline, showKey, showLearners, showNumbers, showRejections } from "./panels.js";
import { fetchJson, listen } from "./stream.js";
import * as theme from "./theme.js";
import { change, last, onChange, pan, readAddress, view, whole, zoomBy } from "./view.js";

const lanes = new Lanes(byId("lanes"), byId("moment"));
const charts = chartsIn();
const detail = new Detail(byId("detail"));
let head = null;
let shown = null; // what the data on the page was fetched for
let fetching = false;
let wanted = false;
let tookMs = 0;

function slots() {
  return Math.max(60, Math.min(420, Math.round(byId("lanes").clientWidth / 3)));
}

// One fetch at a time, and a rest after each that grows with its length: a page is never a burden.
async function fetchWindow() {
  if (fetching) { wanted = true; return; }
  fetching = true;
  const began = performance.now();
  try {
    const [from, to] = view.window;
    const query = { from: from.toFixed(3), to: view.follows ? null : to.toFixed(3), slots: slots() };
    const data = await fetchJson("data", query);
    if (view.follows) view.now = Math.max(view.now, data.to);
    shown = { version: head?.version, window: JSON.stringify(view.window), now: view.now };
    draw(data);
    if (view.learner) detail.show(await fetchJson("learner", { ...query, name: view.learner }).catch(() => null));
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? 0) + 1);
  } catch (problem) {
    byId("link").title = String(problem.message);
  } finally {
    tookMs = performance.now() - began;
    setTimeout(() => { fetching = false; if (wanted) { wanted = false; fetchWindow(); } }, Math.max(250, 2 * tookMs));
  }
}

function draw(data) {
  lanes.show(data);
  charts.show(data, head);
  showLearners(data.lanes, head);
  showAlarms(data.alarms);
  showRejections(data.rejections, data.clippings);
  showEvents(data.happenings, data.happenings_left_out);
}

function onHead(news) {
  head = news;
  view.now = news.now;
  showHeadline(news);
  showNumbers(news);
  const moved = shown?.window !== JSON.stringify(view.window);
  const stands = news.live && news.now - shown?.now > 5; // nothing new, but time goes on
  if (!shown || (view.follows && moved && (stands || shown.version !== news.version))) fetchWindow();
}

onChange(({ moved, learner }) => {
  lanes.point();
  charts.point();
  detail.point();
  for (const button of document.querySelectorAll("[data-zoom]")) {
    const on = { whole: view.follows && view.span === null, minute: view.follows && view.span === 60 }[button.dataset.zoom];
    if (on !== undefined) button.setAttribute("aria-pressed", String(on));
  }
  if (learner) {
    if (!view.learner) detail.show(null);
    for (const row of document.querySelectorAll("#learners tr.pick")) row.setAttribute("aria-selected", String(row.dataset.name === view.learner));
  }
  if (head && (moved || (learner && view.learner))) fetchWindow();
});

const ZOOMS = { earlier: () => pan(-0.5), later: () => pan(0.5), in: () => zoomBy(0.5), out: () => zoomBy(2), whole, minute: () => last(60) };
for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", ZOOMS[button.dataset.zoom]);

function fillDownloads() {
  const [from, to] = view.window;
  const stretch = `from=${from.toFixed(3)}&to=${to.toFixed(3)}`;
  const link = (text, href) => el("a", { href, download: "" }, text);
  replace(byId("downloads"), link("This stretch as CSV", `export?format=csv&${stretch}`), link("This stretch as JSON", `export?format=json&slots=1000&${stretch}`),
    link("The whole run as CSV", "export?format=csv"));
}
document.querySelector(".menu").addEventListener("toggle", fillDownloads);
document.addEventListener("click", (event) => { if (!event.target.closest(".menu")) document.querySelector(".menu").open = false; });

theme.begin(byId("theme"), () => { lanes.draw(); });
showKey();
readAddress();
addEventListener("hashchange", readAddress);
listen({
  onHead,
  onLink: (state) => {
    const link = byId("link");
    link.dataset.state = state;
    link.textContent = state === "live" ? "connected" : "reconnecting";
  },
});
change({}, { quiet: true });
