// Elements from values. Texts are always set as text: nothing that a script or a host wrote is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Return an HTML element; attributes that are null or false are left out, `onclick` and the like are listened to. */
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** Return an SVG element. */
export function s(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

/** Return a section with a heading; `note` stands beside it. */
export function section(id, title, note, ...children) {
  const heading = h("h2", { id: `${id}-title` }, title, note ? h("span", { class: "note" }, note) : null);
  return h("section", { id, class: "card", "aria-labelledby": `${id}-title` }, heading, ...children);
}

/** Return an SVG picture as wide as `host` is, drawn anew whenever that changes. `draw(width)` returns its height and marks. */
export function picture(label, draw) {
  const host = h("div", { class: "picture" });
  let drawn = 0;
  const redraw = () => {
    const width = Math.floor(host.clientWidth);
    if (!width || width === drawn) return;
    drawn = width;
    const { height, marks } = draw(width);
    const size = { viewBox: `0 0 ${width} ${height}`, width, height };
    host.replaceChildren(s("svg", { ...size, role: "group", "aria-label": label }, marks));
  };
  new ResizeObserver(redraw).observe(host);
  return host;
}
