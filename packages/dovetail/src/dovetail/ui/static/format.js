// Numbers, times and names as text.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

export const NONE = "–";

/** A count, complete up to seven digits. */
export function formatCount(value) {
  if (value === null || value === undefined) return NONE;
  return value < 1e7 ? GROUPED.format(value) : COMPACT.format(value);
}

export function formatRate(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(value < 1 ? 2 : 1) : formatCount(value);
}

export function formatShare(part, total) {
  if (!total) return NONE;
  const percent = (100 * part) / total;
  return `${percent > 0 && percent < 10 ? percent.toFixed(1) : Math.round(percent)} %`;
}

/** A duration of any length. */
export function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 0.001) return seconds > 0 ? `${(seconds * 1000).toFixed(2)} ms` : "0 ms";
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function formatClock(at) {
  return CLOCK.format(new Date(at * 1000));
}

/** The time since `at`, rounded so that the text rarely changes. */
export function formatAge(at, now) {
  const seconds = Math.max(0, now - at);
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds / 5) * 5} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return `${Math.floor(seconds / 3600)} h ago`;
}

export function shorten(text, length) {
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}

export function sessionName(session) {
  return session.id || "requests without a session";
}

/** The address of a session, or of one of its turns, within the page. */
export function sessionLink(session, turn) {
  const query = new URLSearchParams({ id: session.id });
  if (session.tenant) query.set("tenant", session.tenant);
  if (turn !== undefined) query.set("turn", turn);
  return `#/session?${query}`;
}
