"use strict";
/* See: what a scheme adds to the scores, and which characters a head attends to. */
const SEEN = 256; // characters: twice the training length
const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -32, ArrowDown: 32 };
let pointed = SEEN - 1; // the character whose attention is shown
/* The matrix (SEEN, SEEN) of one head in the chosen layer. */
function matrixOf(matrices, head) {
  const start = (+$("layer").value * 4 + head) * SEEN * SEEN;
  return matrices.subarray(start, start + SEEN * SEEN);
}
/* What the scheme adds to the scores of a head. A row for each query, a column for each key; empty without attention. */
function drawMatrix({ added, attention }, head) {
  const canvas = make("canvas", { width: SEEN, height: SEEN, className: head === +$("head").value ? "chosen" : "" });
  canvas.onclick = () => {
    $("head").value = head;
    refresh();
  };
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(SEEN, SEEN);
  const scores = matrixOf(added, head);
  matrixOf(attention, head).forEach((weight, n) => {
    const colour = scores[n] > 0 ? [40, 110, 250] : [240, 120, 20];
    const strength = 20 + 235 * Math.min(1, Math.abs(scores[n]) / 8); // full from 8 nats on
    if (weight) image.data.set([...colour, strength], 4 * n);
  });
  pen.putImageData(image, 0, 0);
  return canvas;
}
/* Shows the attention of a character, in both panels. */
function point(i) {
  pointed = Math.max(0, Math.min(SEEN - 1, i));
  for (const panel of panels.filter(panel => panel.seen)) {
    const attention = matrixOf(panel.seen.attention, +$("head").value);
    const weights = attention.subarray(pointed * SEEN, (pointed + 1) * SEEN);
    panel.characters.forEach((span, j) => {
      span.className = j === pointed ? "frame" : j > pointed ? "out" : "";
      span.style.background = `rgba(var(--blue), ${Math.sqrt(weights[j])})`;
    });
    const far = weights.subarray(0, Math.max(0, pointed - panel.trained + 1)).reduce((a, b) => a + b, 0);
    const [n, share] = [pointed + 1, `${(100 * far).toFixed(1)}%`];
    panel.status.textContent = say(`Character ${n} gives ${share} of its attention to those at least ${panel.trained} back.`,
      `第 ${n} 个字符把 ${share} 的注意力给了至少 ${panel.trained} 个字符以前的内容。`);
  }
}

function showInside(panel) {
  const text = data.passages[passage].slice(-SEEN - 1, -1); // without the last, which is only guessed
  panel.showCharacters(text);
  if (SEEN > panel.limit) {
    panel.seen = null;
    panel.picture.replaceChildren();
    return panel.sayUndefined();
  }
  panel.ask({ task: "see", text }, inside => {
    panel.seen = inside;
    refresh();
  });
  if (panel.seen) panel.picture.replaceChildren(...[0, 1, 2, 3].map(head => drawMatrix(panel.seen, head)));
}

views.see = {
  show() {
    panels.forEach(showInside);
    point(pointed);
  },
};
$("layer").onchange = $("head").onchange = refresh;
$("panels").onpointermove = $("panels").onpointerdown = ({ target }) => {
  const places = panels.map(panel => panel.characters?.indexOf(target));
  if (view === "see" && Math.max(...places) >= 0) point(Math.max(...places));
};
$("panels").onkeydown = event => {
  if (view !== "see" || event.target.tagName !== "PRE" || !(event.key in STEPS)) return;
  event.preventDefault();
  point(pointed + STEPS[event.key]);
};
