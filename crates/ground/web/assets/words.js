// Words, numbers and times for people.

export const STATES = { A: 'awake', D: 'going down', S: 'asleep', W: 'waking', F: 'failed', R: 'to sleep, but up', L: 'lost' };

const number = (value, digits = 0) => value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const count = value => number(value);
export const decimal = value => number(value, 2);
export const watts = value => (value == null ? 'unknown' : Math.abs(value) < 10_000 ? `${number(value, Math.abs(value) < 1000 ? 1 : 0)} W` : `${number(value / 1000, 2)} kW`);

export function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let n = 0;
  while (value >= 1024 && n < units.length - 1) {
    value /= 1024;
    n += 1;
  }
  return `${number(value, n === 0 ? 0 : 1)} ${units[n]}`;
}

export const joules = value => (value < 36_000 ? `${number(value)} J` : `${number(value / 3.6e6, value < 3.6e7 ? 3 : 1)} kWh`);

export const millis = value => (value < 10_000 ? `${number(value, value < 10 ? 2 : value < 100 ? 1 : 0)} ms` : `${number(value / 1000, 1)} s`);

export function span(millis) {
  const seconds = Math.max(0, Math.round(millis / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${number(seconds / 3600, 1)} h`;
  return `${number(seconds / 86_400, 1)} days`;
}

const time = date => date.toLocaleTimeString([], { hour12: false });

/// With its date.
export function dated(millis) {
  const date = new Date(millis);
  return `${date.toLocaleDateString([], { weekday: 'short', day: 'numeric', month: 'short' })} ${time(date)}`;
}

/// With its date if that is not clear.
export const clock = millis => (Math.abs(Date.now() - millis) < 43_200_000 ? time(new Date(millis)) : dated(millis));

export function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

export const letter = of => element('span', of, `letter ${of}`);

/// Changes a text only where it differs, so that a screen reader does not read it again.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/// How many servers have each letter.
export function tally(letters) {
  const counts = {};
  for (const of of letters) counts[of] = (counts[of] ?? 0) + 1;
  return counts;
}
