"use strict";
// Fills in the live page from server-sent events.  Texts are set as text, never as markup; charts are drawn by the server.
const query = location.search;
const element = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
let drawn = -1, spoken = "", over = false;

function make(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function duration(seconds) {
  return seconds < 10 ? seconds.toFixed(1) + " s" : seconds < 120 ? Math.round(seconds) + " s"
    : Math.round(seconds / 60) + " min";
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB"];
  let place = 0;
  while (count >= 1000 && place < units.length - 1) { count /= 1000; place += 1; }
  return number.format(count) + " " + units[place];
}

function metric(name, value) {
  return name.endsWith("accuracy") ? (100 * value).toFixed(1) + " %" : number.format(value);
}

function bar(value, most, label) {
  const made = make("progress");
  made.max = most || 1; made.value = Math.min(value, made.max);
  made.setAttribute("aria-label", label);
  return made;
}

function tile(value, name, bad, progress) {
  const made = make("div", undefined, "tile" + (bad ? " bad" : ""));
  made.append(make("b", value), make("span", name));
  if (progress) made.append(progress);
  return made;
}

function showTiles(state) {
  const tiles = [tile(state.finished + " of " + state.planned, "rounds finished", false,
    bar(state.finished, state.planned, "rounds finished"))];
  for (const [name, value] of Object.entries(state.metrics).slice(0, 3)) tiles.push(tile(metric(name, value), name + ", last"));
  if (state.budget !== null) {
    const spent = state.epsilon === null ? 0 : state.epsilon;
    tiles.push(tile(number.format(spent), "epsilon spent of " + number.format(state.budget), spent > state.budget * 1.000001,
      bar(spent, state.budget, "epsilon spent of the budget")));
  }
  if (state.connected !== null) tiles.push(tile(state.connected + " of " + state.members, "clients connected"));
  tiles.push(tile(String(state.invited), "clients invited"), tile(String(state.in_round), "clients in this round"));
  if (state.rounds_per_hour !== null) tiles.push(tile(number.format(state.rounds_per_hour), "rounds an hour"));
  if (state.bytes_per_second !== null) tiles.push(tile(bytes(state.bytes_per_second) + "/s", "all clients together"));
  element("tiles").replaceChildren(...tiles);
}

function showStages(state) {
  element("round").textContent = state.status === "running"
    ? (state.number ? "Round " + state.number + " of " + state.planned : "Waiting for the first round") : "The last round";
  const rows = state.stages.map((stage) => {
    const stuck = stage.state === "now" && stage.waiting.length > 0 && stage.seconds >= 5;
    const row = make("li", undefined, stage.state + (stuck ? " stuck" : ""));
    row.append(make("span", stage.name, "name"));
    const middle = make("span", undefined, "bar");
    if (stage.asked) {
      const text = stage.answered + " of " + stage.asked + (stage.missing ? ", " + stage.missing + " dropped out" : "");
      middle.append(bar(stage.answered, stage.asked, stage.name + ": " + text), make("span", text, "count"));
    }
    else middle.textContent = stage.state === "later" ? "later" : stage.state === "now" ? "the server computes" : "";
    row.append(middle, make("span", stage.state === "later" ? "" : duration(stage.seconds), "time"));
    if (stage.state === "now" && stage.waiting.length)
      row.append(make("span", "waiting for " + (stage.waiting.length + stage.more === 1 ? "client " : "clients ") + stage.waiting.join(", ") + (stage.more ? " and " + stage.more + " more" : ""), "waiting"));
    return row;
  });
  element("stages").replaceChildren(...rows);
}

function showLists(state) {
  const list = (id, texts, none) => element(id).replaceChildren(...(texts.length ? texts : [none]).map((text) => make("li", text)));
  list("dropped", Object.entries(state.dropped).map(([stage, count]) => stage + ": " + count), "nobody");
  list("evicted", state.evicted.map((client) => "client " + client), "nobody");
  list("failures", state.failures, "none");
  const names = state.rounds.length ? Object.keys(state.rounds[0].metrics) : [];
  const head = make("tr");
  for (const text of ["round", ...names, "epsilon", "clients", "dropped out", "took"]) { const cell = make("th", text); cell.scope = "col"; head.append(cell); }
  element("head").replaceChildren(head);
  element("rounds").replaceChildren(...state.rounds.map((round) => {
    const row = make("tr"), first = make("th", String(round.number));
    first.scope = "row"; row.append(first);
    for (const name of names) row.append(make("td", name in round.metrics ? metric(name, round.metrics[name]) : ""));
    for (const text of [round.epsilon === null ? "none" : number.format(round.epsilon), round.clients, round.dropped, duration(round.seconds)]) row.append(make("td", text));
    return row;
  }));
}

function showWarnings(state) {
  const texts = state.warnings, box = element("warnings");
  const shown = [...box.children].map((child) => child.textContent);
  if (texts.length === shown.length && texts.every((text, place) => text === shown[place])) return;
  if (texts.length === shown.length) { texts.forEach((text, place) => { box.children[place].textContent = text; }); return; }
  box.replaceChildren(...texts.map((text) => make("p", text, "alert warning")));
}

function say(state) {
  const text = state.status !== "running" ? "The run " + state.status
    : "Round " + state.number + " of " + state.planned + ", " + state.finished + " finished";
  if (text !== spoken) { spoken = text; element("spoken").textContent = text; document.title = state.name + ": " + text; }
}

async function showCharts(state) {
  if (state.finished === drawn) return;
  drawn = state.finished;
  try {
    const answer = await fetch("charts" + query);
    if (answer.ok) element("charts").innerHTML = await answer.text();
    drawn = Number(answer.headers.get("Rounds"));
  } catch { drawn = -1; }
}

function show(state) {
  const connection = element("connection");
  over = state.status !== "running";
  connection.textContent = over ? "the run " + state.status : "live";
  connection.className = "";
  showTiles(state); showStages(state); showWarnings(state); showLists(state); say(state); showCharts(state);
}

function connect() {
  const source = new EventSource("events" + query);
  source.onmessage = (event) => show(JSON.parse(event.data));
  source.onerror = () => {
    source.close();
    const connection = element("connection");
    connection.textContent = over ? connection.textContent.split(";")[0] + "; this is its last state"
      : "connection lost: this is the last state; trying again";
    connection.className = over ? "" : "lost";
    setTimeout(connect, 1000);
  };
}

connect();
