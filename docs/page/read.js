"use strict";
/* Read: the losses of the same characters, with a context that grows. */
const LENGTHS = Array.from({ length: 13 }, (_, i) => Math.round(32 * 2 ** (i / 2))); // the slider's places: 32 … 2,048
const FRAME = 8; // the characters at the end, which eval_length.py scores
const readings = {}; // "model,window,passage,length" -> the losses of so many characters, as far as they are known
let passage = 0;
let moving = !matchMedia("(prefers-reduced-motion: reduce)").matches; // the slider moves by itself until it is touched

const context = () => LENGTHS[$("context").value]; // characters
const keyOf = (panel, n) => [panel.name, panel.window.value, passage, n].join();
const isRead = (panel, n) => n > panel.limit || readings[keyOf(panel, n)]?.length === n;
/* The mean loss of the framed characters with a context of n. NaN if it is not known. */
function frameLoss(panel, n) {
  const losses = readings[keyOf(panel, n)];
  return losses?.length === n ? mean(losses.slice(-FRAME)) : NaN;
}
/* Reads at the slider's place, then at all others, so that the slider soon moves without waiting. */
function readNext(panel) {
  const n = [context(), ...LENGTHS].find(length => !isRead(panel, length));
  if (!n || view !== "read") return;
  const key = keyOf(panel, n);
  panel.ask({ task: "read", key, n, text: data.passages[passage] }, ({ losses }) => {
    readings[key] = losses;
    if (n === context()) colour(panel);
    if (losses.length < n) return;
    move();
    drawCurve();
    readNext(panel);
  });
}

function colour(panel) {
  const n = context();
  const text = data.passages[passage];
  const start = text.length - n; // of the characters that are guessed
  const losses = readings[keyOf(panel, n)] ?? [];
  panel.showCharacters(text);
  panel.characters.forEach((span, i) => {
    const loss = losses[i - start];
    const name = i < start - 1 ? "out" : loss === undefined ? "" : `loss${Math.min(6, Math.floor(loss))}`;
    span.className = i < text.length - FRAME ? name : `${name} frame`;
  });
  panel.text.querySelector(".mark")?.remove();
  if (n > panel.trained) panel.characters[start + panel.trained].before(panel.mark());
  drawStrip(panel, losses, start);
  const loss = frameLoss(panel, n);
  const share = `${(100 * Math.exp(-loss)).toFixed(loss > 3 ? 1 : 0)}%`;
  panel.status.textContent = isNaN(loss) ? say("reading …", "正在读……")
    : say(`In the frame, the right characters got ${share} (geometric mean), a loss of ${loss.toFixed(2)} nats.`,
      `框内，正确字符得到的概率为 ${share}（几何平均），即损失 ${loss.toFixed(2)} nat。`);
  if (n > panel.limit) panel.sayUndefined();
}
/* The whole text as one line of pixels, with a mark where the training length ends. */
function drawStrip(panel, losses, start) {
  const width = data.passages[passage].length;
  const strip = make("canvas", { width, height: 1, className: "strip" });
  const pen = strip.getContext("2d");
  losses.forEach((loss, i) => {
    pen.fillStyle = `rgba(220, 50, 50, ${Math.min(1, loss / 6)})`;
    pen.fillRect(start + i, 0, 1, 1);
  });
  strip.style.setProperty("--trained", context() > panel.trained ? (start + panel.trained) / width : -1);
  panel.picture.replaceChildren(strip);
}
/* Until the slider is touched, it moves one octave as soon as both models have read at its place. */
function move() {
  if (!moving || !panels.every(panel => isRead(panel, context()))) return;
  $("context").value = +$("context").value + 2;
  moving = context() < LENGTHS.at(-1);
  views.read.show();
}
/* The loss in the frame by the length of the context; the slider below is the x axis. Pale: the benchmark's mean. */
function drawCurve() {
  const curves = panels.map(panel => ({
    points: LENGTHS.map(n => [n, frameLoss(panel, n)]).filter(([, loss]) => loss),
    colour: panel.colour, style: "mean", radius: n => n === context() ? 7 : 3,
  }));
  const benchmark = panels.map((panel, i) => ({ ...curves[i], points: measured(panel), style: "pale", radius: () => 0 }));
  const axes = { x: [32, 2048], y: [0, 6.5], grid: 2, trained: 128, margin: 9, label: n => n.toLocaleString("en") };
  drawChart($("curve"), axes, [...benchmark, ...curves]);
}

views.read = {
  show() {
    for (const output of document.querySelectorAll(".length")) output.textContent = context().toLocaleString("en");
    for (const panel of panels) {
      colour(panel);
      readNext(panel);
      panel.text.scrollTop = panel.text.scrollHeight;
    }
    drawCurve();
    if (panels.every(panel => isRead(panel, 32))) loadData("results").then(drawCurve);
  },
};
$("context").oninput = () => {
  moving = false;
  refresh();
};
$("another").onclick = () => {
  passage = (passage + 1) % data.passages.length;
  refresh();
};
