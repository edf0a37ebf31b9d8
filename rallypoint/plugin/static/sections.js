// The parts of the page that are words: headline, figures, where the time went, incidents, the story, logs.

import { address } from "./asking.js";
import { h, section } from "./dom.js";
import { clock, percent, span } from "./format.js";

export const CHIPS = {
  waiting: "Waiting",
  running: "Running",
  recovering: "Recovering",
  recovered: "Recovered",
  succeeded: "Succeeded",
  failed: "Failed",
  "no-data": "No data",
  "no-permission": "No permission",
};

/** Return the top of the page: how the job is, and what to do. */
export function headline(page) {
  const names = [page.job && h("code", {}, page.job), page.place && h("span", {}, page.place), page.kept && h("span", {}, "data stored by the task; the job itself was deleted")];
  return h("header", { class: `head m-${page.mood}` },
    h("div", { class: "chips" }, h("span", { class: `chip m-${page.mood}` }, CHIPS[page.state]), h("span", { id: "freshness", class: "fresh" })),
    h("h1", {}, page.title),
    h("p", { class: "advice" }, page.advice),
    page.notice && h("p", { class: "note", role: "note" }, page.notice),
    names.some(Boolean) && h("p", { class: "names" }, names));
}

/** Return the figures. */
export function facts(page) {
  if (!page.facts.length) return null;
  const goodput = page.goodput && page.goodput.total > 0
    ? [{ label: "Goodput", text: percent(page.goodput.trained, page.goodput.total), note: "of the total time" }] : [];
  return h("dl", { class: "facts" }, [...page.facts, ...goodput].map((fact) =>
    h("div", {}, h("dt", {}, fact.label), h("dd", {}, h("span", { class: "figure" }, fact.text), h("span", { class: "note" }, fact.note)))));
}

/** Return what the time went to. */
export function goodput(page) {
  const told = page.goodput;
  if (!told || !(told.total > 0)) return null;
  const shares = [{ kind: "training", label: "Training", seconds: told.trained }, ...told.lost];
  const bar = h("div", { class: "stack", role: "img", "aria-label": shares.map((share) => `${share.label} ${percent(share.seconds, told.total)}`).join(", ") },
    shares.map((share) => {
      const part = h("span", { class: `part k-${share.kind}`, title: `${share.label}: ${span(share.seconds)}` });
      part.style.flexGrow = String(share.seconds);
      return part;
    }));
  const rows = shares.map((share) => h("div", {},
    h("dt", {}, h("span", { class: `key k-${share.kind}`, "aria-hidden": "true" }), share.label),
    h("dd", {}, h("span", {}, span(share.seconds)), h("span", {}, percent(share.seconds, told.total)))));
  const note = `${percent(told.trained, told.total)} of ${span(told.total)} was useful training`;
  return section("goodput", "Use of time", note, bar, h("dl", { class: "shares" }, rows));
}

/** Return the incidents, the newest first; the newest that is not healed is open. */
export function faults(page, opened, prefix = "") {
  if (!page.timeline) return null;
  if (!page.faults.length) return section(`${prefix}faults`, "Incidents", "", h("p", { class: "hush" }, "No incidents."));
  const newest = [...page.faults].reverse();
  const first = newest.find((fault) => fault.healed_at === null && fault.mood !== "quiet");
  return section(`${prefix}faults`, "Incidents", `${page.faults.length}, newest first`, newest.map((fault) => incident(fault, fault === first, opened, prefix)));
}

function incident(fault, open, opened, prefix) {
  const id = `${prefix}fault-${fault.number}`;
  const healed = fault.healed_at === null ? (fault.mood === "quiet" ? "ended" : "not recovered") : fault.recovered;
  const mood = fault.healed_at === null ? fault.mood : "good";
  const rows = [
    ["Where", [fault.where, fault.ended && ` – ${fault.ended}`]],
    ["Error", fault.said && h("code", {}, fault.said)],
    ["Verdict", fault.judged],
    ["Action", fault.done],
    ["When", `${clock(fault.at, true)}, attempt ${fault.attempt}${fault.round ? `, round ${fault.round}` : ""}`],
    ["Log", fault.log && h("code", {}, fault.log, fault.host && ` on ${fault.host}`)],
  ].filter(([, value]) => (Array.isArray(value) ? value.some(Boolean) : value));
  const details = h("details", { id, class: `fault m-${mood}`, open: opened.get(id) ?? open },
    h("summary", {},
      h("span", { class: `number m-${mood}` }, fault.number),
      h("span", { class: "what" }, h("strong", {}, fault.cause), h("span", {}, fault.title)),
      h("span", { class: "how" }, h("span", { class: "badge" }, fault.rung), h("span", { class: `healed m-${mood}` }, healed),
        fault.steps_lost === null ? null : h("span", {}, `${fault.steps_lost} ${fault.steps_lost === 1 ? "step" : "steps"} lost`))),
    h("dl", { class: "pairs" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    fault.evidence.length ? tail("Position of each rank", fault.evidence.join("\n")) : null,
    fault.tail.length ? tail(`Last lines of ${fault.rank >= 0 ? `rank ${fault.rank}` : `node ${fault.node}`}`, fault.tail.join("\n")) : null);
  details.addEventListener("toggle", () => opened.set(id, details.open));
  return details;
}

function tail(label, text) {
  return h("figure", { class: "tail" }, h("figcaption", {}, label), h("pre", { tabindex: "0", role: "region", "aria-label": label }, text));
}

/** Return what happens next unless something changes; how long that is yet is told anew each second. */
export function coming(page) {
  if (!page.coming.length) return null;
  const lines = page.coming.map((line) => h("li", {}, h("time", { class: "until", "data-at": line.at }, clock(line.at)), h("span", {}, line.text)));
  return section("coming", "Next", "deadlines, unless the state of the job changes", h("ol", { class: "story" }, lines));
}

/** Return where logs are; the last lines of a rank are brought when somebody asks for them. */
export function logs(page) {
  if (!page.logs.length) return null;
  const rows = page.logs.map((log) => {
    const place = h("div", { class: "lines" });
    const button = h("button", { type: "button", onclick: () => bring(log, place, button) }, "Show the last lines");
    return h("li", {}, h("div", { class: "log" }, h("strong", {}, log.label), button), log.command && h("code", { class: "command" }, log.command), place);
  });
  return section("logs", "Logs", "the log of the Airflow task is in its tab Logs", h("ul", { class: "logs" }, rows));
}

async function bring(log, place, button) {
  button.disabled = true;
  try {
    const answer = await fetch(address("log", { rank: log.rank, role: log.role ?? "" }), { cache: "no-store" });
    const said = await answer.text();
    const refused = answer.headers.get("Content-Type")?.includes("json") ? JSON.parse(said).detail : said;
    place.replaceChildren(answer.ok ? tail(`Last lines of ${log.role ? log.label : `rank ${log.rank}`}`, said) : h("p", { class: "hush" }, String(refused)));
    const shown = place.querySelector("pre");
    if (shown) shown.scrollTop = shown.scrollHeight;
  } catch (error) {
    place.replaceChildren(h("p", { class: "hush" }, `The API server does not answer: ${error.message}`));
  }
  button.disabled = false;
}

/** Return everything that happened, the newest first. */
export function story(page, opened) {
  if (!page.story.length) return null;
  const dated = page.timeline && page.timeline.end - page.timeline.start > 80000;
  const lines = [...page.story].reverse().map((line) => h("li", {},
    h("time", { datetime: new Date(line.at * 1000).toISOString() }, clock(line.at, dated)),
    line.fault ? h("a", { href: `#fault-${line.fault}` }, line.text) : h("span", {}, line.text)));
  const list = h("details", { open: opened.get("story") ?? true }, h("summary", {}, `${lines.length} lines`), h("ol", { class: "story" }, lines));
  list.addEventListener("toggle", () => opened.set("story", list.open));
  return section("story", "Events", "newest first", list);
}

/** Return what is of use now and then. */
export function details(page) {
  if (!page.details.length) return null;
  const rows = page.details.map((fact) => h("div", {}, h("dt", {}, fact.label), h("dd", {}, fact.text)));
  return section("details", "Details", "", h("dl", { class: "pairs" }, rows));
}
