// One small chart for each curve: the same time axis, the incidents as lines, the value under the pointer.

import { h, picture, s, section } from "./dom.js";
import { clock, number, ticks } from "./format.js";

const HEIGHT = 112;
const TOP = 8;
const LEFT = 52;
const BOTTOM = 20;

/** Return the section; the size of the world is drawn with the timeline. */
export function curves(page, prefix = "") {
  const drawn = page.curves.filter((curve) => curve.name !== "World size" && curve.points.length > 1);
  if (!drawn.length) return null;
  const points = drawn.flatMap((curve) => curve.points);
  const axis = { start: Math.min(...points.map((p) => p.at)), end: Math.max(...points.map((p) => p.at)) };
  if (axis.end <= axis.start) return null;
  const faults = page.faults.filter((fault) => fault.at >= axis.start && fault.at <= axis.end);
  return section(`${prefix}curves`, "Progress", "of the current attempt", h("div", { class: "charts" }, drawn.map((curve) => chart(curve, axis, faults))));
}

function chart(curve, axis, faults) {
  const known = curve.points.filter((point) => point.value !== null);
  const last = h("span", { class: "value" }, number(known.at(-1)?.value), curve.unit);
  const label = `${curve.name}: from ${number(known[0]?.value)} to ${curve.last}${curve.unit}, between ${range(known).map(number).join(" and ")}`;
  const drawn = picture(label, (width) => draw(curve, known, axis, faults, width));
  const show = (event) => {
    const box = drawn.getBoundingClientRect();
    const at = axis.start + ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * (axis.end - axis.start);
    const near = known.reduce((best, point) => (Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best), known[0]);
    if (near) last.replaceChildren(`${clock(near.at)}  ${number(near.value)}${curve.unit}`);
  };
  drawn.addEventListener("pointermove", show);
  drawn.addEventListener("pointerleave", () => last.replaceChildren(`${number(known.at(-1)?.value)}${curve.unit}`));
  return h("figure", { class: "chart" }, h("figcaption", {}, h("span", { class: "name" }, curve.name), last), drawn);
}

function range(points) {
  const values = points.map((point) => point.value);
  return [Math.min(...values), Math.max(...values)];
}

function draw(curve, known, axis, faults, width) {
  const [least, most] = range(known);
  const low = least >= 0 && (least < most / 2 || curve.unit) ? 0 : least;
  const high = most > low ? most : low + 1;
  const x = (at) => LEFT + ((at - axis.start) / (axis.end - axis.start)) * (width - LEFT - 2);
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const marks = [low, high].map((value) => s("line", { x1: LEFT, x2: width, y1: y(value), y2: y(value), class: "grid" }));
  for (const fault of faults) {
    marks.push(s("line", { x1: x(fault.at), x2: x(fault.at), y1: TOP, y2: HEIGHT - BOTTOM, class: `fault-line m-${fault.healed_at === null ? fault.mood : "healed"}` }, s("title", {}, `Incident ${fault.number}: ${fault.title}`)));
  }
  const pieces = lines(curve.points, x, y);
  marks.push(pieces.map((piece) => s("path", { d: `${piece.path}V${HEIGHT - BOTTOM}H${piece.from}Z`, class: "under" })));
  marks.push(pieces.map((piece) => s("path", { d: piece.path, class: "curve" })));
  marks.push([high, low].map((value) => s("text", { x: LEFT - 6, y: y(value), class: "tick", "text-anchor": "end", "dominant-baseline": "central" }, number(value))));
  for (const { at, label } of ticks(axis.start, axis.end, width - LEFT, 110)) {
    const anchor = x(at) > width - 20 ? "end" : x(at) < LEFT + 20 ? "start" : "middle";
    marks.push(s("text", { x: x(at), y: HEIGHT - 4, class: "tick", "text-anchor": anchor }, label));
  }
  return { height: HEIGHT, marks };
}

// The line is broken where a value is unknown: between rounds nothing was measured.
function lines(points, x, y) {
  const pieces = [];
  let open = false;
  for (const point of points) {
    if (point.value === null) {
      open = false;
      continue;
    }
    const at = x(point.at).toFixed(1);
    if (!open) pieces.push({ from: at, path: `M${at} ${y(point.value).toFixed(1)}` });
    else pieces.at(-1).path += `L${at} ${y(point.value).toFixed(1)}`;
    open = true;
  }
  return pieces.filter((piece) => piece.path.includes("L"));
}
