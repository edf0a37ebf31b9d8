// The page: asks, and draws what has changed. A part whose values are the same is left alone, with what is open or selected.

import { follow } from "./asking.js";
import { curves } from "./curves.js";
import { h } from "./dom.js";
import { span } from "./format.js";
import { ranks } from "./ranks.js";
import { roles } from "./roles.js";
import { coming, details, facts, faults, goodput, headline, logs, story } from "./sections.js";
import { followTheme } from "./theme.js";
import { timeline } from "./timeline.js";

// Seconds without news after which a job that should be live is doubted.
const QUIET = 90;

const PARTS = [
  { draw: headline, of: (p) => [p.state, p.mood, p.title, p.advice, p.job, p.place, p.kept, p.notice] },
  { draw: facts, of: (p) => [p.facts, p.goodput] },
  { draw: roles, of: (p) => [p.roles] },
  { draw: timeline, of: (p) => [p.timeline, p.faults, p.curves] },
  { draw: faults, of: (p) => [p.faults, Boolean(p.timeline)] },
  { draw: coming, of: (p) => [p.coming] },
  { draw: goodput, of: (p) => [p.goodput] },
  { draw: curves, of: (p) => [p.curves, p.faults] },
  { draw: ranks, of: (p) => [p.nodes] },
  { draw: logs, of: (p) => [p.logs] },
  { draw: story, of: (p) => [p.story] },
  { draw: details, of: (p) => [p.details] },
].map((part) => ({ ...part, host: h("div", { class: "part-host" }), drawn: "" }));

const EMPTY = { live: false, as_of: 0, kept: false, job: "", place: "", facts: [], timeline: null, faults: [], nodes: [], curves: [], goodput: null, coming: [], story: [], logs: [], details: [], notice: "", roles: [] };

const REFUSED = {
  401: ["no-permission", "You are not signed in", "Sign in to Airflow in this browser, then reload this page."],
  403: ["no-permission", "You have no permission to see this task's training", "The tab requires permission to read task instances and task logs of this DAG. Ask an Airflow administrator."],
  404: ["no-data", "Task instance not found", "The DAG run was deleted, or the task has another map index. Open the DAG run and choose the task again."],
};

const opened = new Map();
let page = null;
let offset = 0;
let broken = "";

function show() {
  for (const part of PARTS) {
    const values = JSON.stringify(part.of(page));
    if (values === part.drawn) continue;
    part.drawn = values;
    part.host.replaceChildren(...[part.draw(page, opened)].filter(Boolean));
  }
  const main = document.getElementById("page");
  if (main.getAttribute("aria-busy")) {
    main.removeAttribute("aria-busy");
    main.replaceChildren(h("div", { class: "banner", role: "status", hidden: true }), PARTS.map((part) => part.host).reduce((all, host) => (all.append(host), all), new DocumentFragment()));
  }
  document.title = page.job ? `${page.title} – ${page.job}` : page.title;
  age();
}

// How old the newest word is, told anew each second without drawing anything else.
function age() {
  if (!page) return;
  const old = (Date.now() + offset) / 1000 - page.as_of;
  const quiet = page.live && page.as_of > 0 && old > QUIET;
  const fresh = document.getElementById("freshness");
  if (fresh) {
    fresh.textContent = !page.as_of ? "" : page.live ? `live, as of ${span(old)} ago` : page.kept ? "" : `ended ${span(old)} ago`;
    fresh.classList.toggle("live", page.live && !quiet && !broken);
  }
  for (const moment of document.querySelectorAll("time.until")) {
    const left = Number(moment.dataset.at) - (Date.now() + offset) / 1000;
    moment.textContent = left > 0 ? `in ${span(left)}` : "now";
  }
  const banner = document.querySelector(".banner");
  if (!banner) return;
  const doubt = quiet ? `The last report of this job is ${span(old)} old. The training may still run. If the job has no supervisor, the next try of the task or “rallypoint supervise ${page.job}” supervises it.` : "";
  const said = broken ? `The API server cannot be reached (${broken}); retrying. The values below are the last known ones.` : doubt;
  banner.hidden = !said;
  if (banner.textContent !== said) banner.textContent = said;
}

followTheme();
follow((told) => {
  broken = told.broken ?? "";
  offset = told.offset ?? offset;
  if (told.refused) {
    const [state, title, advice] = REFUSED[told.refused];
    page = { ...EMPTY, state, title, advice, mood: "quiet" };
  } else if (told.page) {
    page = told.page;
  } else if (broken && !page) {
    page = { ...EMPTY, state: "no-data", mood: "busy", title: "The API server does not answer", advice: "The page retries automatically. The training is not affected." };
  }
  if (page) show();
});
setInterval(age, 1000);
