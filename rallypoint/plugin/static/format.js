// Times and numbers as people read them.

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY];

/** Return a length of time to two figures that matter: `3.2 s`, `42 s`, `2m 13s`, `1h 05m`, `3d 4h`. */
export function span(seconds) {
  const value = Math.max(0, seconds);
  if (value < 9.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < MINUTE) return `${whole} s`;
  if (whole < HOUR) return `${Math.floor(whole / MINUTE)}m ${String(whole % MINUTE).padStart(2, "0")}s`;
  if (whole < DAY) return `${Math.floor(whole / HOUR)}h ${String(Math.floor((whole % HOUR) / MINUTE)).padStart(2, "0")}m`;
  return `${Math.floor(whole / DAY)}d ${Math.floor((whole % DAY) / HOUR)}h`;
}

/** Return a moment in the reader's own time zone: the time of day, with the date where `dated`. */
export function clock(at, dated = false) {
  const moment = new Date(at * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
  return dated ? `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())} ${time}` : time;
}

/** Return moments for an axis, about one per `room` pixels, each with its label. */
export function ticks(start, end, width, room = 90) {
  const least = ((end - start) * room) / Math.max(width, 1);
  const step = STEPS.find((candidate) => candidate >= least) ?? Math.ceil(least / DAY) * DAY;
  const zone = new Date(start * 1000).getTimezoneOffset() * MINUTE;
  const found = [];
  for (let at = Math.ceil((start - zone) / step) * step + zone; at <= end; at += step) {
    const text = clock(at, true);
    found.push({ at, label: step >= DAY ? text.slice(5, 10) : step >= MINUTE ? text.slice(11, 16) : text.slice(11) });
  }
  return found;
}

/** Return a number as short as it may be. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en-US");
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export function percent(part, whole) {
  if (!(whole > 0)) return "–";
  const share = (100 * part) / whole;
  return share > 0 && share < 10 ? `${share.toFixed(1)} %` : `${Math.round(share)} %`;
}
