// Numbers as people read them.
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.0995) return `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${(hours / 24).toFixed(1)} days`;
}

// A moment of the run, as long as it has to be.
export function moment(seconds, span = Infinity) {
  const digits = span < 0.5 ? 3 : span < 3 ? 2 : span < 20 ? 1 : 0;
  const s = Math.max(0, Number(seconds.toFixed(digits)));
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  if (s >= 172800) return `day ${(s / 86400).toFixed(2)}`;
  const tail = `${two(s / 60 % 60)}:${digits ? (s % 60).toFixed(digits).padStart(digits + 3, "0") : two(s % 60)}`;
  return s >= 3600 ? `${Math.floor(s / 3600)}:${tail}` : tail;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  return scaled(count, 1000, ["B", "kB", "MB", "GB", "TB", "PB", "EB"]);
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 1e5) return Math.round(value).toLocaleString("en");
  return scaled(value, 1000, ["", "k", "M", "G", "T", "P"]).trim();
}

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
  return size >= 100 ? value.toFixed(0) : value.toFixed(digits);
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(share > 0.995 || share < 0.1 ? 1 : 0)} %`);

export function clockTime(wall) {
  return wall ? new Date(1000 * wall).toLocaleString() : "";
}

function scaled(value, by, units) {
  let unit = 0;
  while (Math.abs(value) >= by && unit < units.length - 1) { value /= by; unit += 1; }
  return `${unit === 0 ? Math.round(value) : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${units[unit]}`;
}
