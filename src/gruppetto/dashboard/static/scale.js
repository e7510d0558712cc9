// From values to places, and the round values that an axis names.
export function linear([low, high], [from, to]) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

export function logarithmic([low, high], range) {
  const place = linear([Math.log(low), Math.log(high)], range);
  return (value) => place(Math.log(Math.max(value, low)));
}

export function ticks(low, high, about) {
  const rough = (high - low) / Math.max(1, about);
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  return upTo(low, high, step);
}

const TIMES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

export function timeTicks(from, to, about) {
  const rough = (to - from) / Math.max(1, about);
  const step = TIMES.find((s) => s >= rough) ?? 86400 * Math.ceil(rough / 86400);
  return upTo(from, to, step);
}

// The end of an axis on which most values can be told apart: far beyond nine tenths of them nothing is to scale.
const USUAL = 0.9;
const FAR = 4;
export function usualHigh(values) {
  const ordered = [...values].sort((a, b) => a - b);
  const usual = ordered[Math.floor((ordered.length - 1) * USUAL)];
  const within = ordered.filter((value) => value <= FAR * usual);
  return usual > 0 ? within.at(-1) : ordered.at(-1);
}

export function logTicks(low, high) {
  const found = [];
  for (let p = Math.ceil(Math.log10(low) - 1e-9); p <= Math.log10(high) + 1e-9; p += 1) found.push(10 ** p);
  const by = Math.ceil(found.length / 5);
  return found.filter((_, i) => i % by === 0);
}

function upTo(low, high, step) {
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && found.length < 50; i += 1) found.push(i * step);
  return found;
}
