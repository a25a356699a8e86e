const frame = event.target, view = frame.contentWindow, page = frame.contentDocument;
const now = () => page.getElementById("now").textContent, panel = () => page.querySelector("[data-step]").textContent;
const key = name => page.body.dispatchEvent(new view.KeyboardEvent("keydown", {key: name, bubbles: true}));
const click = id => page.getElementById(id).click();
const pointer = (kind, name, x, y) => {
  const svg = page.querySelector(`figure.${name} .pinned svg:last-child`);
  const at = new view.DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
  svg.dispatchEvent(new view.PointerEvent(kind, {bubbles: true, clientX: at.x, clientY: at.y}));
};
const cursor = name => {
  const box = page.querySelector(`figure.${name} .cursor:not(.back)`);
  return ["x", "y"].map(side => +box.getAttribute(side));
};
const open = hash => { view.location.hash = hash; view.dispatchEvent(new view.Event("hashchange")); };
const all = choice => [...page.querySelectorAll(choice)], right = one => one.getBoundingClientRect().right;
const {lanes, map, errors} = JSON.parse(page.getElementById("data").textContent)[0].layouts;
const found = {};
SCRIPT
document.getElementById("said").textContent = JSON.stringify(found);
