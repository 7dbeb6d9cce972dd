// Values as people read them. Pure: no clock, no document.

const NONE = "–";

export function count(value) {
  return value === null || value === undefined ? NONE : value.toLocaleString("en-GB");
}

export function figure(value, digits = 2) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits) return value.toExponential(1);
  return value.toFixed(digits);
}

export function signed(value, digits = 2) {
  if (value === null || value === undefined) return NONE;
  const text = Math.abs(value).toFixed(digits);
  if (Number(text) === 0) return text;
  return `${value > 0 ? "+" : "−"}${text}`;
}

export function share(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : NONE;
}

export function millis(value) {
  if (value === null || value === undefined) return NONE;
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(value < 10000 ? 2 : 1)} s`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const steps = [[1, 120, "s"], [60, 7200, "min"], [3600, 172800, "h"], [86400, Infinity, "d"]];
  const [size, , unit] = steps.find(([, limit]) => seconds < limit);
  return `${Math.round(seconds / size)} ${unit}`;
}

export function ago(moment, now) {
  return moment === null || moment === undefined ? "never" : `${duration(Math.max(0, now - moment))} ago`;
}

export function interval(low, high) {
  return low === null || high === null ? NONE : `${signed(low)} to ${signed(high)}`;
}

export function signOf(score) {
  if (score === null || score === undefined) return "none";
  return score > 0 ? "pos" : score < 0 ? "neg" : "zero";
}

export function moment(seconds) {
  return new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19);
}

// Words of a message, whatever form its content has.
export function words(content) {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return JSON.stringify(content);
  return content.map((part) => (typeof part === "string" ? part : part.text ?? `[${part.type ?? "part"}]`)).join("\n");
}

// Places on a time axis that are `step` seconds apart: the hour, and below it the day where it is
// another than before; days alone where steps are as long.
export function clock(places, step) {
  let before = "";
  return places.map((at) => {
    const [day, hour] = moment(at).split(" ");
    const changed = day !== before;
    before = day;
    if (step >= 86400) return day;
    const time = hour.slice(0, step < 60 ? 8 : 5);
    return changed ? `${time}\n${day}` : time;
  });
}
