// What a frame as wide as a phone shows of the page of a report; each function says it as JSON.
const say = found => { document.getElementById("said").textContent = JSON.stringify(found); };

function sayWhatSticksOut(frame) {
  const page = frame.contentDocument, root = page.documentElement;
  const wide = [...page.querySelectorAll("body *")].filter(one =>
    one.getBoundingClientRect().right > 391 && !one.closest(".wide, figure, svg, .skip"));
  const tab = [...page.querySelectorAll(".wide, .pinned, summary, a[href]")].filter(one => one.tabIndex < 0);
  say({width: root.scrollWidth, wide: wide.map(one => one.outerHTML.slice(0, 80)), unreachable: tab.length,
       maps: page.querySelectorAll("figure > svg.error-map[role=img]").length, alerts: window.alerted || 0});
}

function sayWhatMoves(frame) {
  frame.contentDocument.querySelectorAll("details").forEach(one => one.open = true);
  const box = frame.contentDocument.querySelector(".pinned"), [labels, work] = box.querySelectorAll("svg");
  const left = one => Math.round(one.getBoundingClientRect().left);
  const before = [left(labels), left(work)];
  box.scrollLeft = 200;
  say({scrolled: box.scrollLeft, labels: left(labels) - before[0], work: left(work) - before[1]});
}

function sayWhatIsHidden(frame) {
  const page = frame.contentDocument;
  page.querySelectorAll("details").forEach(one => one.open = true);
  const cells = [...page.querySelectorAll(".cases td")].filter(one => one.textContent.trim());
  const hidden = cells.filter(one => one.getBoundingClientRect().right > 390 || !one.getBoundingClientRect().width);
  say({cells: cells.length, hidden: hidden.map(one => one.textContent),
       labels: [...new Set(cells.map(one => one.dataset.label).filter(one => one))],
       cue: frame.contentWindow.getComputedStyle(page.querySelector(".sideways")).display});
}
