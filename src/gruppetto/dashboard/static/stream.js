// News from the server, and what there is to fetch. A stream that breaks is opened again: the syncer may be starting.
const AGAIN_MS = [500, 1000, 2000, 4000];
const SILENT_MS = 15000;

export function listen({ onHead, onLink }) {
  let tries = 0;
  let source = null;
  let heard = 0;

  function open() {
    source = new EventSource("events");
    heard = Date.now();
    source.addEventListener("head", (event) => {
      tries = 0;
      heard = Date.now();
      onLink("live");
      onHead(JSON.parse(event.data));
    });
    source.addEventListener("open", () => { heard = Date.now(); });
    source.addEventListener("error", again);
  }

  function again() {
    source.close();
    onLink("lost");
    setTimeout(open, AGAIN_MS[Math.min(tries, AGAIN_MS.length - 1)]);
    tries += 1;
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && source.readyState === EventSource.CLOSED && Date.now() - heard > SILENT_MS) again();
  });
  open();
}

export async function fetchJson(path, query) {
  const said = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined));
  const reply = await fetch(`${path}?${said}`, { headers: { Accept: "application/json" } });
  if (reply.status === 401) location.reload();
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
  return reply.json();
}
