// The lanes over one time axis: what the time went to, the size of the world, rounds, attempts, phases, incidents.

import { picture, s, section } from "./dom.js";
import { clock, number, span, ticks } from "./format.js";

const AXIS = 22;
const GAP = 10;

/** Return the section. */
export function timeline(page) {
  const line = page.timeline;
  if (!line || line.end <= line.start) return null;
  const took = span(line.end - line.start);
  const drawn = picture(`Timeline of ${took}: ${spoken(page)}`, (width) => draw(page, width));
  return section("timeline", "Timeline", `${clock(line.start, true)} to ${clock(line.end)}, ${took}`, drawn);
}

function spoken(page) {
  const { attempts, rounds } = page.timeline;
  return `attempts: ${attempts.length}, rounds: ${rounds.length}, incidents: ${page.faults.length}`;
}

function draw(page, width) {
  const wide = width >= 620;
  const left = wide ? 84 : 0;
  const { start, end } = page.timeline;
  const x = (at) => left + ((Math.min(Math.max(at, start), end) - start) / (end - start)) * (width - left - 1);
  const marks = [];
  let y = page.faults.length ? 26 : 2;

  for (const lane of lanes(page)) {
    if (!wide) y += 14;
    const at = wide ? { x: 0, y: y + lane.height / 2, class: "lane-name", "dominant-baseline": "central" } : { x: 0, y: y - 4, class: "lane-name" };
    marks.push(s("text", at, lane.name));
    marks.push(s("g", { role: "list", "aria-label": lane.name }, lane.draw(x, y, lane.height, page)));
    y += lane.height + (wide ? GAP : 6);
  }
  for (const { at, label } of ticks(start, end, width - left)) {
    marks.unshift(s("line", { x1: x(at), x2: x(at), y1: 0, y2: y, class: "grid" }));
    const anchor = x(at) > width - 24 ? "end" : x(at) < left + 16 ? "start" : "middle";
    marks.push(s("text", { x: x(at), y: y + 14, class: "tick", "text-anchor": anchor }, label));
  }
  marks.push(incidents(page, x, y, width));
  return { height: y + AXIS, marks };
}

function lanes(page) {
  const { work, rounds, attempts, phases } = page.timeline;
  const world = page.curves.find((curve) => curve.name === "World size");
  return [
    { name: "Use of time", height: 22, draw: (x, y, height) => bars(byWeight(work), x, y, height, (part) => part.kind !== "training" && 2) },
    world && { name: "World size", height: 34, draw: (x, y, height) => steps(world, x, y, height, page.timeline.end) },
    rounds.length && { name: "Rounds", height: 20, draw: (x, y, height) => bars(rounds, x, y, height) },
    { name: "Attempts", height: 20, draw: (x, y, height) => bars(attempts, x, y, height) },
    { name: "Phases", height: 20, draw: (x, y, height) => bars(phases, x, y, height) },
  ].filter((lane) => lane);
}

// What kept the job from training is drawn last: it may be thin, and must be seen.
function byWeight(work) {
  return [...work].sort((one, other) => (other.kind === "training") - (one.kind === "training"));
}

function bars(spans, x, y, height, least = () => 1) {
  return spans.map((part) => {
    const from = x(part.start);
    const wide = Math.max(least(part) || 1, x(part.end ?? Infinity) - from - (part.kind === "training" ? 0 : 1));
    const until = part.end === null ? "goes on" : span(part.end - part.start);
    const said = [part.label, `${clock(part.start)}, ${until}`, part.note].filter(Boolean).join("\n");
    const box = s("rect", { x: from, y, width: wide, height, rx: Math.min(3, wide / 2), class: `bar k-${part.kind}` });
    const room = Math.floor((wide - 10) / 6.6);
    const text = fitted(part.label, room);
    const label = text && s("text", { x: from + 6, y: y + height / 2, class: `on k-${part.kind}`, "dominant-baseline": "central", "aria-hidden": "true" }, text);
    return s("g", { role: "listitem", "aria-label": said.replaceAll("\n", ", ") }, s("title", {}, said), box, label);
  });
}

// A label that does not fit is cut at a word that means something by itself, or left out.
function fitted(label, room) {
  const short = label.split(/[:(]/)[0].trim();
  return [label, short, short.match(/\d+$/)?.[0] ?? ""].find((text) => text.length <= room) ?? "";
}

function steps(curve, x, y, height, end) {
  const points = curve.points.filter((point) => point.value !== null);
  const top = Math.max(...points.map((point) => point.value), 1);
  const level = (value) => y + height - (value / top) * (height - 2);
  let path = `M${x(points[0].at)} ${y + height}`;
  points.forEach((point, place) => {
    path += `V${level(point.value)}H${x(points[place + 1]?.at ?? end)}`;
  });
  const changes = points.map((point) => `${number(point.value)} ranks from ${clock(point.at)}`).join(", ");
  const labels = points.map((point, place) => {
    const room = x(points[place + 1]?.at ?? end) - x(point.at);
    const fresh = place === 0 || points[place - 1].value !== point.value;
    return fresh && room > 30 && s("text", { x: x(point.at) + 5, y: level(point.value) + 13, class: "on-area", "aria-hidden": "true" }, number(point.value));
  });
  return s("g", { role: "listitem", "aria-label": changes }, s("title", {}, changes), s("path", { d: `${path}V${y + height}Z`, class: "world" }), labels);
}

function incidents(page, x, bottom, width) {
  const groups = [];
  for (const fault of page.faults) {
    const at = x(fault.at);
    const last = groups.at(-1);
    if (last && at - last.at < 22) last.faults.push(fault);
    else groups.push({ at, faults: [fault] });
  }
  const marks = groups.map(({ at, faults }) => {
    const said = faults.map((fault) => `Incident ${fault.number}, ${clock(fault.at)}: ${fault.title}`).join("\n");
    const text = faults.length > 1 ? `${faults[0].number}–${faults.at(-1).number}` : String(faults[0].number);
    const half = faults.length > 1 ? 4 + 3.6 * text.length : 10;
    const centre = Math.min(Math.max(half + 1, at), width - half - 1);
    const mood = faults.some((fault) => fault.mood === "bad") ? "bad" : faults.some((fault) => fault.mood === "busy") ? "busy" : "healed";
    return s("g", { role: "listitem" },
      s("line", { x1: at, x2: at, y1: 20, y2: bottom, class: `fault-line m-${mood}` }),
      s("a", { href: `#fault-${faults[0].number}`, "aria-label": said.replaceAll("\n", "; ") },
        s("title", {}, said),
        s("rect", { x: centre - half, y: 0, width: 2 * half, height: 20, rx: 10, class: `fault-mark m-${mood}` }),
        s("text", { x: centre, y: 10.5, class: "fault-number", "text-anchor": "middle", "dominant-baseline": "central" }, text)));
  });
  return s("g", { role: "list", "aria-label": "Incidents" }, marks);
}
