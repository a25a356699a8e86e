"use strict";
// Steps through the page's runs. The data is a JSON block; the pictures are SVG, on which this script draws cursors.
const runs = JSON.parse(document.getElementById("data").textContent);
const by = id => document.getElementById(id);
for (const run of runs) for (const lane of run.lanes) lane.kinds = run.kinds;
const state = {link: runs[0].lanes[0].link, step: 0, row: 0, timer: 0};

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children.filter(child => child !== null));
  return made;
}
function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
function floats(text) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}
const number = value => typeof value !== "number" ? {"-inf": "−∞", inf: "∞"}[value] || String(value) : !Number.isFinite(value) ? String(value)
  : Number.isInteger(value) && Math.abs(value) < 1e6 ? String(value) : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6 ? value.toExponential(3) : value.toPrecision(7);
const error = value => !Number.isFinite(value) ? String(value) : value === 0 ? "0" : value.toExponential(1);
const amount = (run, count) => !count ? "" : run.unit === "B" && count >= 10240 ? `${(count / 1024).toPrecision(3)} KiB` : `${count} ${run.unit}`;
const lengths = lane => lane.runs.reduce((sum, run) => sum + run[3], 0);

function laneOf(run, link) { return run.lanes.find(lane => lane.link === link); }
function* stepsOf(lane) {
  let step = 0;
  for (const [kind, tile, first, count, every, traffic, values] of lane.runs)
    for (let at = 0; at < count; at++) yield {step: step++, kind: lane.kinds[kind], tile, first: first + at * every, traffic, values};
}
function stepOf(lane, step) {
  let left = step;
  for (const [kind, tile, first, count, every, traffic, values] of lane.runs) {
    if (left < count) return left < 0 ? null : {step, kind: lane.kinds[kind], tile, first: first + left * every, traffic, values};
    left -= count;
  }
  return null;
}
const isKV = one => one.kind.sign === "#", is = (one, ...names) => names.includes(one.kind.name);
function find(run, wanted) {
  for (const lane of run.lanes) for (const one of stepsOf(lane)) if (wanted(one, lane)) return {link: lane.link, step: one.step};
  return null;
}
function pathOf(run, row) {
  const found = [];
  for (const lane of run.lanes) for (const one of stepsOf(lane)) if (one.tile === row.tile) found.push({link: lane.link, step: one.step});
  return found;
}

// A description of a step.
function rowsOf(run, kb0) { return [kb0 * run.step_rows, Math.min((kb0 + 1) * run.step_rows, run.n_kv) - 1]; }
function words(run, lane, one) {
  if (!one) return `${lane.name} has ${lengths(lane)} steps`;
  const kind = one.kind, tile = run.tiles[one.tile] ? `tile ${one.tile} (${run.tiles[one.tile]})` : "";
  if (isKV(one) && run.step_rows && one.tile >= 0) {
    if (run.shape && run.shape.sparse) return `KV step ${one.first}, ${run.step_rows} KV rows that the kernel gathered, of ${tile}`;
    const [from, to] = rowsOf(run, one.first), shown = run.masks.length ? +run.masks[one.tile][one.first] : 9;
    const hidden = shown === 0 ? "; the mask hides all of it" : shown < 9 ? "; the mask hides a part" : "";
    return `KV step ${one.first}, KV rows ${from} to ${to} of ${tile}${hidden}`;
  }
  if (is(one, "take", "add part")) return `${kind.name}: what block ${one.first} stored of ${tile}`;
  return `${kind.name}${kind.sign.endsWith("#") ? ` ${one.first}` : ""}${tile ? `: ${tile}` : ""}`;
}

// The row to show: the chosen one if the step works on its tile, otherwise a row of the step's tile.
function rowAt(run, one) {
  const chosen = run.rows[state.row];
  return chosen && chosen.tile === one.tile ? chosen : run.rows.find(row => row.tile === one.tile);
}
function numbersAt(run, lane, one, row) {
  const block = is(one, "take", "add part", "divide") ? one.first : +lane.link.split("=")[1];
  const part = row.parts.find(each => each.block === block);
  if (is(one, "divide", "store dst")) return {out: row.out, end: is(one, "store dst") && part ? part.end : null};
  if (!part || is(one, "load Q")) return null;
  if (!isKV(one)) return {end: part.end};
  const at = part.kb0.indexOf(one.first);
  if (at < 0) return null;
  const start = part.P_sizes.slice(0, at).reduce((sum, size) => sum + size, 0), size = part.P_sizes[at];
  const all = part.VKQ.map(floats), DV = all[0].length / part.kb0.length;
  return {m: part.m[at], l: part.l[at], before: at ? part.m[at - 1] : ["-inf", "-inf"], first: rowsOf(run, one.first)[0],
    P: part.P.map(text => floats(text).slice(start, start + size)), VKQ: all.map(part => part.slice(at * DV, (at + 1) * DV))};
}

function chart(title, [ours, wrong], first, along) {
  const width = 600, count = ours.length, bar = width / Math.max(1, count), svg = shape("svg", {class: "chart", viewBox: `0 0 ${width} 96`, preserveAspectRatio: "none", role: "img"});
  const exact = ours.map((value, at) => value - wrong[at]);
  const finite = [...ours, ...exact].filter(Number.isFinite);
  const top = Math.max(...finite, 0), low = Math.min(...finite, 0), span = top - low || 1, y = value => 4 + 62 * (top - value) / span;
  let kernel = "", right = "", off = "", worst = 0;
  for (let at = 0; at < count; at++) {
    const x = at * bar, w = Math.max(bar - (bar > 3 ? 1 : 0), .4), to = Number.isFinite(ours[at]) ? y(ours[at]) : 4;
    kernel += `M${x.toFixed(2)} ${y(0).toFixed(2)}V${to.toFixed(2)}h${w.toFixed(2)}V${y(0).toFixed(2)}z`;
    right += `M${x.toFixed(2)} ${y(exact[at]).toFixed(2)}h${w.toFixed(2)}`;
    const size = Math.abs(wrong[at]), high = size ? Math.min(22, Math.max(1, 22 * (Math.log10(size) + 9) / 9)) : 0;
    off += `M${x.toFixed(2)} 96v${(-high).toFixed(2)}h${w.toFixed(2)}v${high.toFixed(2)}z`;
    if (!(Math.abs(wrong[at]) <= Math.abs(wrong[worst]))) worst = at;
  }
  svg.append(shape("path", {class: "a", d: `M0 ${y(0)}H${width}`}), shape("path", {class: "k", d: kernel}), shape("path", {class: "x", d: right.replace(/M[^M]*NaN[^M]*/g, "")}), shape("path", {class: "e", d: off.replace(/M[^M]*NaN[^M]*/g, "")}));
  const said = `largest error ${error(wrong[worst])} at ${along} ${first + worst}`;
  svg.setAttribute("aria-label", `${title}: ${count} numbers, ${said}`);
  const readout = element("p", {class: "key"});
  const show = at => { readout.textContent = `${along} ${first + at}: kernel ${number(ours[at])}, exact ${number(exact[at])}, error ${error(wrong[at])}`; };
  const rest = () => { readout.replaceChildren(`${said}. `, element("i", {style: "background:var(--accent)"}), "kernel", element("i", {style: "background:var(--ink);height:3px;vertical-align:3px"}), "exact", element("i", {style: "background:var(--bad)"}), "error, 1e-9 to 1 in powers of ten"); };
  svg.addEventListener("pointermove", event => { const box = svg.getBoundingClientRect(); show(Math.min(count - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * count)))); });
  svg.addEventListener("pointerleave", rest);
  rest();
  return [element("h3", {}, title), svg, readout];
}
function table(heads, rows) {
  const body = rows.map(cells => element("tr", {}, ...cells.map((cell, at) => element("td", at ? {class: "r"} : {}, cell))));
  return element("div", {class: "wide"}, element("table", {}, heads.every(head => !head) ? "" : element("thead", {}, element("tr", {}, ...heads.map((head, at) => element("th", at ? {class: "r", scope: "col"} : {scope: "col"}, head)))), element("tbody", {}, ...body)));
}
const pair = (name, [ours, exact]) => [name, number(ours), number(exact), typeof ours === "string" || typeof exact === "string" ? "" : error(ours - exact)];
const factor = (before, now) => typeof before === "string" || typeof now === "string" ? "" : Math.exp(before - now);

function numberPanel(run, lane, one) {
  const row = one && one.tile >= 0 ? rowAt(run, one) : null, panel = element("div");
  if (!run.shape) {
    panel.append(element("h3", {}, "Numbers, in float64"), one && one.values ? table(["", ""], one.values.map(([name, value]) => [name, number(value)])) : element("p", {class: "none"}, "No numbers change in this step."));
    return panel;
  }
  if (!row) {
    panel.append(element("p", {class: "none"}, run.rows.length ? "The page has no numbers of this tile." : "There are no numbers of rows."));
    return panel;
  }
  const [sequence, query, head] = row.row, found = numbersAt(run, lane, one, row);
  panel.append(element("h3", {}, `Row: query ${query}, head ${head}${sequence ? `, sequence ${sequence}` : ""}`));
  if (!found) { panel.append(element("p", {class: "none"}, "No numbers change in this step.")); return panel; }
  const heads = ["", "kernel's arithmetic", "exact", "error"], rows = [];
  const sums = found.end || (found.m ? found : null);
  if (sums) rows.push(pair("maximum m", sums.m), pair("row sum l", sums.l));
  if (found.m) {
    const scale = [factor(found.before[0], found.m[0]), factor(found.before[1], found.m[1])];
    if (typeof found.before[0] === "number") rows.push(pair("rescale e^(m before − m)", scale));
  }
  if (rows.length) panel.append(table(heads, rows));
  if (found.P) panel.append(...chart("P, the weights of the KV rows of this step", found.P, found.first, "KV row"));
  const VKQ = found.VKQ || (found.end && !found.out && found.end.VKQ.map(floats));
  if (VKQ) panel.append(...chart(found.m ? "VKQ after this step" : "VKQ as stored, undivided", VKQ, 0, "d"));
  if (found.out) {
    if (found.out.found) panel.append(...chart("dst of this run", found.out.found.map(floats), 0, "d"));
    panel.append(...chart("dst by the kernel's arithmetic", found.out.kernel.map(floats), 0, "d"));
  }
  return panel;
}
function tracedPanel(run, lane, one) {
  const found = one && run.traced.filter(each => each.place.lane === lane.link && (isKV(one) ? each.place.kb0 === one.first && [-1, one.tile].includes(each.place.tile) : each.place.kb0 === null && one.step === lengths(lane) - 1));
  if (!found || !found.length) return [element("h3", {}, "Registers"), element("p", {class: "none"}, run.traced.length ? `not traced here; the trace followed ${run.traced[0].who}` : "not traced")];
  return found.flatMap(each => [element("h3", {}, `Read from the kernel: ${each.who}`),
    table(["", "largest", "largest error", ""], each.quantities.map(([name, largest, off, beyond]) =>
      [name, number(largest), typeof off === "number" ? error(off) : number(off), element("span", {class: beyond ? "bad" : "ok"}, beyond ? `${beyond} beyond the bound` : "within the bound")]))]);
}
function warpsPanel(run, one) {
  if (!run.shape || !isKV(one)) return [];
  const {ncols1, ncols2, warps, np, chunk} = run.shape, columns = ncols1 * ncols2, each = Math.max(1, columns * np / warps), step = run.step_rows;
  const svg = shape("svg", {class: "chart warps", viewBox: `0 0 ${step} ${columns}`, preserveAspectRatio: "none", role: "img"});
  const warpAt = (column, row) => Math.floor(column / each) * np + Math.floor(row / chunk) % np;
  for (let column = 0; column < columns; column += each)
    for (let row = 0; row < step; row += np > 1 ? chunk : step)
      svg.append(shape("rect", {x: row, y: column, width: np > 1 ? chunk : step, height: each, style: `fill-opacity:${0.2 + 0.7 * warpAt(column, row) / warps}`}));
  const said = `${warps} warps: each has ${each} of ${columns} columns${np > 1 ? `, and 1/${np} of the KV rows` : ""}`, readout = element("p", {class: "key"}, said);
  svg.setAttribute("aria-label", said);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), along = (at, size, count) => Math.max(0, Math.min(count - 1, Math.floor(at / size * count)));
    const row = along(event.clientX - box.left, box.width, step), column = along(event.clientY - box.top, box.height, columns);
    readout.textContent = `warp ${warpAt(column, row)}: query ${Math.floor(column / ncols2)} and head ${column % ncols2} of the tile, KV row ${run.shape.sparse ? `number ${row} of the step` : one.first * step + row}`;
  });
  svg.addEventListener("pointerleave", () => { readout.textContent = said; });
  return [element("h3", {}, "Warps: columns of the tile down, KV rows across"), svg, readout];
}
function panelOf(run, lane, one) {
  const left = element("div");
  const kind = one && one.kind;
  left.append(element("h3", {}, one ? kind.name : "no step"), element("p", {}, one ? `${words(run, lane, one)}.` : words(run, lane, one)));
  if (!one) return [left];
  if (kind.about) left.append(element("p", {class: "none"}, kind.about));
  const moved = run.traffics[one.traffic] || [];
  if (moved.length) left.append(element("h3", {}, run.shape ? "Traffic of the step, each element once" : "Slow memory"), table(["", "read", "written"], moved.map(([name, read, written]) => [name, amount(run, read), amount(run, written)])));
  left.append(...warpsPanel(run, one));
  if (kind.lines.length) left.append(element("h3", {}, "Source"), element("ol", {class: "lines"}, ...kind.lines.map(([what, place, text]) =>
    element("li", {}, element("b", {}, what), " ", element("span", {}, place || "not found in this source"), text ? element("code", {tabindex: "0"}, text) : null))));
  const right = numberPanel(run, lane, one);
  if (run.shape) right.append(...tracedPanel(run, lane, one));
  return [left, right];
}

// Cursors on the pictures.
function svgOf(section, name) { return section.querySelector(`figure.${name} .pinned svg:last-child`); }
function outline(svg, name, x, y, width, height) { svg.append(shape("rect", {class: `drawn ${name}`, x, y, width: Math.max(1, width), height})); }
function boxOf(layout, lane, at, step) { return [layout.left + (lane.start + step) * layout.step, layout.tops[at], layout.step, layout.row]; }
function drawCursors(run, section, lane, one) {
  section.querySelectorAll(".drawn").forEach(old => old.remove());
  const lanes = run.layouts.lanes, svg = svgOf(section, "lanes"), at = run.lanes.indexOf(lane), time = lane.start + state.step;
  const bottom = lanes.tops[lanes.tops.length - 1] + lanes.row;
  outline(svg, "band", lanes.left + time * lanes.step, lanes.tops[0], lanes.step, bottom - lanes.tops[0]);
  const cursor = (where, box) => { outline(where, "cursor back", ...box); outline(where, "cursor", ...box); };
  if (one) cursor(svg, boxOf(lanes, lane, at, state.step));
  const tiles = svgOf(section, "tiles"), map = run.layouts.map;
  const cell = one => map.tops[one.tile] === undefined ? null : [map.left + one.first * map.step, map.tops[one.tile], map.step, map.row - 1];
  if (tiles) {
    for (const other of run.lanes) {
      const same = stepOf(other, time - other.start);
      if (same && other !== lane && time >= other.start && isKV(same) && cell(same)) outline(tiles, "busy", ...cell(same));
    }
    if (one && isKV(one) && cell(one)) cursor(tiles, cell(one));
    else if (one && map.tops[one.tile] !== undefined) cursor(tiles, [map.left, map.tops[one.tile], map.step * map.count, map.row - 1]);
  }
  const wrong = svgOf(section, "wrong"), row = one && one.tile >= 0 && rowAt(run, one);
  if (wrong && row) { const e = run.layouts.errors; cursor(wrong, [e.left + row.row[1] * e.step, e.top + row.row[2] * e.row, e.step, e.row]); }
  const place = markedStep(run);
  if (place) {
    const marked = laneOf(run, place.link), first = stepOf(marked, place.step);
    outline(svg, "first", ...boxOf(lanes, marked, run.lanes.indexOf(marked), place.step));
    if (tiles && isKV(first) && cell(first)) outline(tiles, "first", ...cell(first));
  }
  const pane = svg.closest(".pinned"), [x, y] = one ? boxOf(lanes, lane, at, state.step) : [lanes.left, 0], scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width || 1;
  const left = (x - lanes.left) * scale, high = y * scale;
  if (left < pane.scrollLeft || left > pane.scrollLeft + pane.clientWidth - 150) pane.scrollLeft = Math.max(0, left - 60);
  if (high < pane.scrollTop || high > pane.scrollTop + pane.clientHeight - 30) pane.scrollTop = Math.max(0, high - pane.clientHeight / 2);
}
function markedStep(run) {
  const place = run.marked && run.marked.place, lane = place && laneOf(run, place.lane);
  if (!lane) return null;
  const found = [...stepsOf(lane)].find(one => isKV(one) && one.first === place.kb0 && [-1, one.tile].includes(place.tile));
  return {link: lane.link, step: found ? found.step : Math.max(0, lengths(lane) - 1)};
}

function show(quietly) {
  const lane = laneOf(runs[0], state.link) || runs[0].lanes[0];
  state.link = lane.link;
  const longest = Math.max(...runs.map(run => { const own = laneOf(run, state.link); return own ? lengths(own) : 0; }));
  state.step = Math.max(0, Math.min(state.step, longest - 1));
  runs.forEach((run, at) => {
    const section = document.querySelector(`[data-run="${at}"]`), own = laneOf(run, state.link), panel = section.querySelector("[data-step]");
    if (!own) {
      section.querySelectorAll(".drawn").forEach(old => old.remove());
      panel.replaceChildren(element("p", {class: "none"}, `This run has no ${state.link.replace("=", " ")}.`));
      return;
    }
    const one = stepOf(own, state.step);
    drawCursors(run, section, own, one);
    panel.replaceChildren(...panelOf(run, own, one));
  });
  const one = stepOf(lane, state.step);
  if (one) { const row = rowAt(runs[0], one); if (row) state.row = runs[0].rows.indexOf(row); }
  by("now").textContent = `${lane.name}, step ${state.step} of 0 to ${Math.max(0, lengths(lane) - 1)}: ${words(runs[0], lane, one)}`;
  by("lane").value = state.link;
  if (runs[0].rows.length) by("row").value = state.row;
  if (!quietly) history.replaceState(null, "", `#${state.link},step=${state.step}${runs[0].rows.length ? `,row=${state.row}` : ""}`);
}
function go(place) { if (place) { Object.assign(state, place); show(); } }
function move(by) {
  const run = runs[0];
  if (document.getElementById("follow").checked && run.rows[state.row]) {
    const path = pathOf(run, run.rows[state.row]), at = path.findIndex(one => one.link === state.link && one.step === state.step);
    const next = path[at < 0 ? 0 : at + by];
    if (next) go(next); else stop();
    return;
  }
  const most = Math.max(...runs.map(each => { const own = laneOf(each, state.link); return own ? lengths(own) - 1 : 0; }));
  if (state.step + by > most || state.step + by < 0) { stop(); return; }
  state.step += by; show();
}
function moveLane(by) {
  const lanes = runs[0].lanes, at = lanes.findIndex(lane => lane.link === state.link), next = lanes[at + by];
  if (next) { state.link = next.link; show(); }
}
function stop() { clearInterval(state.timer); state.timer = 0; by("play").setAttribute("aria-pressed", "false"); by("play").textContent = "Play"; }
function play() {
  if (state.timer) { stop(); return; }
  by("play").setAttribute("aria-pressed", "true"); by("play").textContent = "Pause";
  state.timer = setInterval(() => move(1), 700);
}
function fromHash() {
  const parts = Object.fromEntries(location.hash.slice(1).split(",").map(part => part.split("=")));
  for (const key of ["block", "tile", "lane"]) if (key in parts && laneOf(runs[0], `${key}=${parts[key]}`)) state.link = `${key}=${parts[key]}`;
  if ("row" in parts && runs[0].rows[+parts.row]) state.row = +parts.row;
  state.step = +parts.step || 0;
  if (!location.hash) Object.assign(state, runs.map(markedStep).find(place => place && laneOf(runs[0], place.link)));
  show(true);
}

// Shows the step under the mouse pointer; a click selects it.
function place(svg, event) { const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()); return [at.x, at.y]; }
function under(run, name, [x, y]) {
  if (name === "lanes") {
    const layout = run.layouts.lanes, at = layout.tops.findIndex(top => y >= top && y < top + layout.row);
    if (at < 0) return null;
    const step = Math.floor((x - layout.left) / layout.step) - run.lanes[at].start;
    return stepOf(run.lanes[at], step) ? {link: run.lanes[at].link, step} : null;
  }
  if (name === "tiles") {
    const layout = run.layouts.map, kb0 = Math.floor((x - layout.left) / layout.step);
    const tile = Object.keys(layout.tops).find(one => y >= layout.tops[one] && y < layout.tops[one] + layout.row);
    return tile === undefined ? null : find(run, one => isKV(one) && one.tile === +tile && one.first === kb0);
  }
  const layout = run.layouts.errors, query = Math.floor((x - layout.left) / layout.step), head = Math.floor((y - layout.top) / layout.row);
  if (query < 0 || head < 0 || query >= layout.queries || head >= layout.heads) return null;
  const {ncols1, ncols2, group, grid} = run.shape, z = Math.floor(head / group), zt = Math.floor(head % group / ncols2);
  const tile = ((run.layouts.errors.sequence * grid.ne12 + z) * grid.iter_z_gqa + zt) * grid.iter_j + Math.floor(query / ncols1);
  return find(run, one => one.tile === tile && is(one, "divide", "store dst")) || find(run, one => one.tile === tile);
}
const keys = by("over").firstElementChild;
runs.forEach((run, at) => {
  const section = document.querySelector(`[data-run="${at}"]`);
  for (const name of ["lanes", "tiles", "wrong"]) {
    const svg = svgOf(section, name);
    if (!svg) continue;
    svg.addEventListener("pointermove", event => {
      const found = under(run, name, place(svg, event)), lane = found && laneOf(run, found.link);
      by("over").replaceChildren(lane ? `${lane.name}, step ${found.step}: ${words(run, lane, stepOf(lane, found.step))}` : keys);
    });
    svg.addEventListener("pointerleave", () => by("over").replaceChildren(keys));
    svg.addEventListener("click", event => go(under(run, name, place(svg, event))));
  }
});
document.querySelectorAll("[data-marked]").forEach(button => button.addEventListener("click", () => go(markedStep(runs[+button.dataset.marked]))));
for (const lane of runs[0].lanes) by("lane").append(element("option", {value: lane.link}, lane.name));
runs[0].rows.forEach((row, at) => by("row").append(element("option", {value: at}, `query ${row.row[1]}, head ${row.row[2]}${row.row[0] ? `, sequence ${row.row[0]}` : ""}`)));
if (!runs[0].rows.length) by("row").closest("label").hidden = by("follow").closest("label").hidden = true;
by("lane").addEventListener("change", event => go({link: event.target.value, step: 0}));
by("row").addEventListener("change", event => { state.row = +event.target.value; go(pathOf(runs[0], runs[0].rows[state.row])[0]); });
by("first").addEventListener("click", () => go({step: 0}));
by("back").addEventListener("click", () => move(-1));
by("next").addEventListener("click", () => move(1));
by("last").addEventListener("click", () => go({step: 1e9}));
by("play").addEventListener("click", play);
addEventListener("keydown", event => {
  const inside = choice => event.target.closest && event.target.closest(choice);
  if (inside("select, input, .pinned, .wide, code") || (event.key === " " && inside("button, summary"))) return;  // these elements handle keys themselves
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const actions = {ArrowRight: () => move(1), ArrowLeft: () => move(-1), ArrowUp: () => moveLane(-1), ArrowDown: () => moveLane(1), Home: () => go({step: 0}), End: () => go({step: 1e9}), " ": play};
  if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
});
addEventListener("hashchange", fromHash);
fromHash();
