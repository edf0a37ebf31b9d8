// One card for each role of a job with several: how it is, its figures, its incidents, and its instances or ranks.

import { curves } from "./curves.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { ranks } from "./ranks.js";
import { CHIPS, facts, faults } from "./sections.js";

/** Return the cards, in the job's order. */
export function roles(page, opened) {
  if (!page.roles.length) return null;
  return h("div", { id: "roles" }, page.roles.map((role) => card(role, opened)));
}

function card(role, opened) {
  const id = `role-${role.name}`;
  const kind = [role.launch, role.driver ? "driver" : "server"].join(", ");
  const whole = { ...role, goodput: null, timeline: true };
  const parts = [
    facts(whole),
    role.faults.length ? faults(whole, opened, `${id}-`) : null,
    role.curves.length ? curves(whole, `${id}-`) : null,
    role.nodes.length ? ranks(whole, `${id}-`) : null,
    role.instances.length ? instances(role) : null,
  ];
  const heading = h("h2", { id: `${id}-title` }, `Role ${role.name}`,
    h("span", { class: `chip m-${role.mood}` }, CHIPS[role.state]), h("span", { class: "note" }, kind));
  return h("section", { id, class: `card role m-${role.mood}`, "aria-labelledby": `${id}-title` }, heading, h("p", { class: "role-title" }, role.title), parts);
}

function instances(role) {
  const cells = role.instances.map((one) => {
    const said = [`Instance ${one.index}`, one.state, `group ${one.group}`, one.life > 1 ? `life ${one.life}` : "", one.restarts ? `${one.restarts} restarts in its group` : ""].filter(Boolean).join(", ");
    return h("li", { class: `cell s-${one.mood}${one.life > 1 ? " again" : ""}`, title: said },
      h("span", { class: "hidden" }, said),
      h("span", { "aria-hidden": "true" }, h("span", { class: "rank" }, one.index), h("span", { class: "step" }, one.life > 1 ? `${one.state}, life ${number(one.life)}` : one.state)));
  });
  return h("div", { class: "instances" }, h("h3", {}, "Instances"), h("ol", { class: "cells wide" }, cells));
}
