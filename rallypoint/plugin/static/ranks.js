// Every rank of the last world on its node: how far it is, which lag behind, which broke.

import { h, section } from "./dom.js";
import { number } from "./format.js";

// More ranks than this are drawn as small squares: their numbers are in what is said of each.
const SPELLED = 128;

/** Return the section. */
export function ranks(page, prefix = "") {
  if (!page.nodes.length) return null;
  const steps = page.nodes.flatMap((node) => node.ranks).map((rank) => rank.step).filter((step) => step !== null);
  const furthest = steps.length ? Math.max(...steps) : null;
  const behind = page.nodes.flatMap((node) => node.ranks).filter((rank) => rank.behind).length;
  const note = furthest === null ? "the script reports no steps" : behind ? `${behind} of ${steps.length} ranks are behind the highest step, ${number(furthest)}` : `all ranks are near step ${number(furthest)}`;
  const small = page.nodes.reduce((sum, node) => sum + node.ranks.length, 0) > SPELLED;
  return section(`${prefix}ranks`, "Ranks", note, h("ul", { class: `nodes${small ? " small" : ""}` }, page.nodes.map((node) => row(node, small))));
}

function row(node, small) {
  const times = node.incarnation > 1 ? `, incarnation ${node.incarnation}` : "";
  const faults = node.faults ? h("span", { class: "badge m-bad" }, node.faults === 1 ? "1 fault" : `${node.faults} faults`) : null;
  const head = h("div", { class: "node" },
    h("span", { class: `dot m-${node.mood}`, "aria-hidden": "true" }),
    h("strong", {}, `Node ${node.node}`), h("span", { class: "host" }, node.host),
    h("span", { class: "state" }, node.state + times), faults);
  return h("li", {}, head, h("ol", { class: "cells" }, node.ranks.map((rank) => cell(rank, small))));
}

function cell(rank, small) {
  const lag = rank.behind;
  const step = rank.step === null ? "no step" : `step ${number(rank.step)}`;
  const said = [`Rank ${rank.rank}`, step, lag ? `${number(lag)} behind` : "", rank.pid ? `process ${rank.pid}` : "", rank.faults ? `failed first ${rank.faults}×` : ""].filter(Boolean).join(", ");
  const shown = small ? [] : [h("span", { class: "rank" }, rank.rank), h("span", { class: "step" }, rank.step === null ? "–" : lag ? `−${number(lag)}` : number(rank.step))];
  return h("li", { class: `cell${lag ? " lags" : ""}${rank.faults ? " broke" : ""}`, title: said },
    h("span", { class: "hidden" }, said), h("span", { "aria-hidden": "true" }, shown));
}
