"use strict";
/* A model in a worker. It takes {load: file} and tasks {task: "read" | "write" | "see", id, …}, of which a new one ends
the one before. An answer carries the id of its task. */
function work(lengthwise) {
  const { Model } = lengthwise();
  let model;
  let current; // the id of the newest task

  const rest = (ms = 0) => new Promise(resolve => setTimeout(resolve, ms)); // lets messages come in
  /* The losses of the last n characters of a text, block by block. Before the first of them there is one character. */
  async function read({ id, text, n, window }) {
    const ids = model.encode(text).slice(-n - 1);
    const losses = [];
    for (const block of model.feed(ids.slice(0, n), model.cache(n, window))) {
      for (const logits of block) losses.push(loss(logits, ids[losses.length + 1]));
      postMessage({ id, losses });
      await rest();
      if (current !== id) return;
    }
  }
  /* Characters one by one, at most `pace` a second. Past the limit of a scheme, a character sees the last `limit`. */
  async function write({ id, prompt, count, window, temperature, seed, pace }) {
    const ids = model.encode(prompt);
    const random = generator(seed), start = performance.now();
    const n = Math.min(ids.length + count, model.limit); // that a cache holds
    let cache = model.cache(n, window);
    let fresh = ids.slice(-model.limit);
    let busy = 0; // milliseconds
    for (let written = 1; written <= count && current === id; written++) {
      const before = performance.now();
      if (cache.pos + fresh.length > n) [cache, fresh] = [model.cache(n, window), ids.slice(-n)];
      const logits = [...model.feed(fresh, cache)].at(-1).at(-1);
      fresh = [draw(logits, temperature, random)];
      ids.push(...fresh);
      busy += performance.now() - before;
      postMessage({ id, char: model.chars[fresh[0]], speed: 1000 * written / busy });
      const early = start + 1000 * written / pace - performance.now();
      if (early > 0 || written % 16 === 0) await rest(early);
    }
  }
  /* For every layer, head, query and key (L, H, n, n): what the scheme adds to the score, and the attention. */
  function see({ id, text, window }) {
    const { n_layer: L, n_head: H, n_embd: C } = model.config;
    const n = text.length, D = C / H;
    const added = new Float32Array(L * H * n * n), attention = new Float32Array(L * H * n * n);
    const plain = Array.from({ length: L }, () => ({ q: [], k: [] })); // that the scheme has not turned
    const rowOf = (layer, h, i) => ((layer * H + h) * n + i) * n;
    model.watch = {
      token(layer, q, k) {
        plain[layer].q.push(q.slice());
        plain[layer].k.push(k.slice());
      },
      scores(layer, h, i, first, row) {
        const q = plain[layer].q[i];
        for (let j = first; j <= i; j++) {
          const k = plain[layer].k[j];
          let score = 0;
          for (let c = h * D; c < (h + 1) * D; c++) score += q[c] * k[c] / Math.sqrt(D);
          added[rowOf(layer, h, i) + j] = row[j - first] - score;
        }
      },
      weights(layer, h, i, first, row, sum) {
        for (let j = first; j <= i; j++) attention[rowOf(layer, h, i) + j] = row[j - first] / sum;
      },
    };
    [...model.feed(model.encode(text), model.cache(n, window))];
    model.watch = null;
    postMessage({ id, added, attention }, [added.buffer, attention.buffer]);
  }
  /* −log of the probability of an id. */
  function loss(logits, id) {
    const max = Math.max(...logits);
    const sum = logits.reduce((total, z) => total + Math.exp(z - max), 0);
    return Math.log(sum) + max - logits[id];
  }
  /* An id, by its probability. Temperature 0 takes the likeliest. */
  function draw(logits, temperature, random) {
    const max = Math.max(...logits);
    if (!temperature) return logits.indexOf(max);
    const shares = Array.from(logits, z => Math.exp((z - max) / temperature));
    let left = random() * shares.reduce((a, b) => a + b);
    return Math.max(0, shares.findIndex(share => (left -= share) < 0));
  }
  /* Random numbers below 1: the linear congruential generator of Numerical Recipes. */
  const generator = seed => () => (seed = Math.imul(seed, 1664525) + 1013904223 >>> 0) / 2 ** 32;

  const tasks = { read, write, see };
  onmessage = ({ data }) => {
    current = data.id;
    if (data.task) return tasks[data.task](data);
    model = new Model(data.load);
    postMessage({ limit: model.limit });
  };
}
