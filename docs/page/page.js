"use strict";
/* What the views share: the language, the data, two panels with a model each, charts, and the choice of a view. */
const $ = id => document.getElementById(id);
const language = (new URLSearchParams(location.search).get("lang") ?? navigator.language).startsWith("zh") ? "zh" : "en";
const say = (english, chinese) => language === "zh" ? chinese : english;

const MODELS = {
  rope: "RoPE", alibi: "ALiBi", fox5: "FoX", rope_nope: say("RoPE, and none in layer 4", "RoPE，第 4 层无编码"),
  learnable: say("learned positions", "学习的位置"), none: say("no positions", "无位置编码"),
};
const WINDOWS = { 0: say("sees all", "看全部") };
for (const n of [32, 64, 128]) WINDOWS[n] = say(`sees the last ${n}`, `看最近 ${n} 个`);
const views = {}; // name -> {show()}
const panels = [];
let view; // its name

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
/* ---- The data: scripts, because a page that is opened from disk may not fetch ------------------------------------ */
const data = {}; // "rope", …, "passages", "results" -> what tools/page.py wrote
const scripts = {}; // name -> a promise
const add = (name, content) => data[name] = content;

function loadData(name) {
  const src = `data/${name}.js`;
  return scripts[name] ??= new Promise(onload => document.head.append(make("script", { src, onload })));
}
/* ---- A panel: a model that computes in a worker of its own, and its text ----------------------------------------- */
class Panel {
  constructor(name, number) {
    this.colour = `var(--panel${number})`;
    this.model = this.select(say("model", "模型"), MODELS, () => this.load());
    this.window = this.select(say("window", "窗口"), WINDOWS, refresh);
    this.picture = make("div", { className: "picture" });
    this.text = make("pre", { tabIndex: 0 });
    this.status = make("p");
    this.element = make("section", {}, make("h2", {}, this.model, this.window), this.picture, this.text, this.status);
    this.model.value = name;
    this.tasks = 0;
  }
  select(ariaLabel, choices, onchange) {
    const options = Object.entries(choices).map(([value, textContent]) => make("option", { value, textContent }));
    return make("select", { ariaLabel, onchange }, ...options);
  }
  get name() { return this.model.value; }
  get trained() { return data[this.name].config.block_size; }
  async load() {
    const name = this.name;
    this.worker?.terminate(); // it may be busy
    this.task = this.limit = undefined;
    this.status.textContent = say("loading …", "正在载入……");
    await loadData(name);
    if (name !== this.name) return; // another choice in the meantime
    this.worker = new Worker(URL.createObjectURL(new Blob([lengthwise, work, "work(lengthwise)"])));
    this.worker.onerror = event => this.status.textContent = event.message;
    this.worker.onmessage = message => {
      this.limit = message.data.limit; // how many positions its scheme has
      refresh();
    };
    this.worker.postMessage({ load: data[name] });
  }
  /* Starts a task of the worker, unless it is already under way or done. */
  ask(task, answer) {
    const message = { ...task, window: +this.window.value };
    if (this.task === JSON.stringify(message)) return;
    this.task = JSON.stringify(message);
    this.seen = null;
    this.tasks++;
    this.worker.onmessage = reply => reply.data.id === this.tasks && answer(reply.data);
    this.worker.postMessage({ ...message, id: this.tasks });
  }
  /* Forgets its task and its text. */
  stop() {
    this.tasks++;
    this.task = this.shown = undefined;
  }
  /* Shows a text, with an element for each character. */
  showCharacters(text) {
    if (this.shown === text) return;
    this.shown = text;
    this.characters = Array.from(text, textContent => make("span", { textContent }));
    this.text.replaceChildren(...this.characters);
  }
  mark() {
    return make("b", { className: "mark" }, this.trained, say(": training texts ended here", "：训练到此为止"));
  }
  sayUndefined() {
    this.status.textContent = say(`It has no positions past ${this.limit}.`, `它没有 ${this.limit} 之后的位置。`);
  }
}
/* ---- Charts ------------------------------------------------------------------------------------------------------ */
const mean = numbers => numbers.reduce((a, b) => a + b) / numbers.length;
/* Losses by length. Curves: {points: [[length, loss], …], colour, style, radius: of the dot at a length}. */
function drawChart(svg, { x: [first, last], y: [low, high], grid, trained, margin, label }, curves) {
  const width = svg.clientWidth, height = svg.clientHeight;
  const x = n => margin + (width - 2 * margin) * Math.log2(n / first) / Math.log2(last / first);
  const y = loss => height - 20 - (height - 24) * (loss - low) / (high - low);
  const parts = [];
  for (let loss = Math.ceil(low / grid) * grid; loss <= high; loss += grid) // a line in the background
    parts.push(`<path d="M0 ${y(loss)}H${width}"/><text y="${y(loss) - 3}">${+loss.toFixed(1)}</text>`);
  for (let n = first; n <= last; n *= 2) parts.push(`<text class="x" x="${x(n)}" y="${height - 4}">${label(n)}</text>`);
  parts.push(`<path class="trained" d="M${x(trained)} 0V${height - 20}"/>`);
  parts.push(`<text x="${x(trained) + 6}" y="12">${say("the training length →", "训练长度 →")}</text>`);
  for (const { points, colour, style, radius = () => 0 } of curves) {
    const line = points.map(([n, loss]) => [x(n), y(loss)]);
    parts.push(`<polyline class="${style}" points="${line}" stroke="${colour}"/>`);
    for (const [n, loss] of points) parts.push(`<circle cx="${x(n)}" cy="${y(loss)}" r="${radius(n)}" fill="${colour}"/>`);
  }
  svg.innerHTML = parts.join("");
}
/* ---- The choice of a view ---------------------------------------------------------------------------------------- */
/* Shows the view again, once both models are there. */
function refresh() {
  if (view === "explore" || panels.every(panel => panel.limit)) views[view].show();
}

function choose() {
  const name = location.hash.slice(1);
  view = name in views ? name : "read";
  document.body.className = view;
  for (const link of document.querySelectorAll("nav a")) link.ariaCurrent = link.hash === `#${view}` ? "page" : null;
  $("language").search = say("lang=zh", "lang=en");
  $("language").hash = view;
  for (const panel of panels) panel.stop();
  refresh();
}
/* A comparison, as the buttons name it: "rope fox5", "rope rope/128". */
function compare(pair) {
  pair.split(" ").forEach((choice, n) => {
    [panels[n].model.value, panels[n].window.value = 0] = choice.split("/");
    panels[n].load();
  });
}

function start() {
  document.documentElement.lang = language;
  panels.push(new Panel("rope", 0), new Panel("fox5", 1));
  $("panels").append(...panels.map(panel => panel.element));
  for (const button of document.querySelectorAll("[data-pair]")) button.onclick = () => compare(button.dataset.pair);
  onhashchange = choose;
  onresize = () => view !== "write" && refresh();
  choose();
  for (const panel of panels) panel.load();
}
