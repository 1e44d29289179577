"use strict";
/* The forward pass of model.py, for one text: the embedding, blocks of attention and MLP, and the tied head. A scheme
acts through the same three hooks as in Python. All of it is one function, because a page that is opened from disk can
start a worker only from the text of a function. T new tokens, S visible tokens, C channels, H heads, D = C/H, V ids;
a matrix is an array of its rows, one after another. */
function lengthwise() {
  const BLOCK = 32; // tokens that pass through the layers together

  // ---- Arithmetic --------------------------------------------------------------------------------------------------
  /* y (T, N) = x (T, K) · w (N, K)ᵀ. Rows start yStep, xStep and wStep numbers apart. Sixteen sums at a time: eight
  numbers that are read serve sixteen products. N is rounded up to a multiple of four. */
  function multiply(y, x, w, T, N, K, yStep, xStep, wStep) {
    let t = 0;
    for (; t + 4 <= T; t += 4) {
      for (let n = 0; n < N; n += 4) {
        let a0 = 0, a1 = 0, a2 = 0, a3 = 0;
        let b0 = 0, b1 = 0, b2 = 0, b3 = 0;
        let c0 = 0, c1 = 0, c2 = 0, c3 = 0;
        let d0 = 0, d1 = 0, d2 = 0, d3 = 0;
        let j = n * wStep;
        for (let i = t * xStep, end = i + K; i < end; i++, j++) {
          const a = x[i], b = x[i + xStep], c = x[i + 2 * xStep], d = x[i + 3 * xStep];
          const w0 = w[j], w1 = w[j + wStep], w2 = w[j + 2 * wStep], w3 = w[j + 3 * wStep];
          a0 += a * w0; a1 += a * w1; a2 += a * w2; a3 += a * w3;
          b0 += b * w0; b1 += b * w1; b2 += b * w2; b3 += b * w3;
          c0 += c * w0; c1 += c * w1; c2 += c * w2; c3 += c * w3;
          d0 += d * w0; d1 += d * w1; d2 += d * w2; d3 += d * w3;
        }
        let o = t * yStep + n;
        y[o] = a0; y[o + 1] = a1; y[o + 2] = a2; y[o + 3] = a3; o += yStep;
        y[o] = b0; y[o + 1] = b1; y[o + 2] = b2; y[o + 3] = b3; o += yStep;
        y[o] = c0; y[o + 1] = c1; y[o + 2] = c2; y[o + 3] = c3; o += yStep;
        y[o] = d0; y[o + 1] = d1; y[o + 2] = d2; y[o + 3] = d3;
      }
    }
    for (; t < T; t++) { // the rows that are left over, or the only one
      for (let n = 0; n < N; n += 4) {
        let a0 = 0, a1 = 0, a2 = 0, a3 = 0;
        let j = n * wStep;
        for (let i = t * xStep, end = i + K; i < end; i++, j++) {
          const a = x[i];
          a0 += a * w[j]; a1 += a * w[j + wStep]; a2 += a * w[j + 2 * wStep]; a3 += a * w[j + 3 * wStep];
        }
        const o = t * yStep + n;
        y[o] = a0; y[o + 1] = a1; y[o + 2] = a2; y[o + 3] = a3;
      }
    }
  }
  /* LayerNorm without a bias: y (T, C) of x (T, C). */
  function normalize(y, x, weight, T) {
    const C = weight.length;
    for (let row = 0; row < T * C; row += C) {
      let mean = 0, variance = 0;
      for (let c = 0; c < C; c++) mean += x[row + c] / C;
      for (let c = 0; c < C; c++) variance += (x[row + c] - mean) ** 2 / C;
      const size = 1 / Math.sqrt(variance + 1e-5);
      for (let c = 0; c < C; c++) y[row + c] = (x[row + c] - mean) * size * weight[c];
    }
  }
  /* The exact GELU, x·Φ(x). Φ as in Abramowitz and Stegun 7.1.26, with an error below 1e-7. */
  function gelu(x) {
    const z = Math.abs(x) * Math.SQRT1_2;
    const t = 1 / (1 + 0.3275911 * z);
    const poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    const tail = 0.5 * poly * Math.exp(-z * z); // 1 − Φ(|x|)
    return x > 0 ? x - x * tail : x * tail;
  }

  // ---- Position schemes --------------------------------------------------------------------------------------------
  /* The hooks of a scheme for one token at position i. Here, each does nothing, so this is `none`. */
  class Scheme {
    constructor(config, weights) {
      this.config = config;
      this.weights = weights;
    }
    get limit() { return Infinity; } // how many positions it is defined for
    embed(x, i) {} // on the token's embedding
    rotate(q, k, x, i, layer, past) {} // on its query and key, of all heads; x: the layer's input; past: its own memory
    bias(scores, i, first, layer, head, past) {} // on the scores of its query with the keys first … i
  }
  class Learnable extends Scheme {
    get limit() { return this.config.block_size; }
    embed(x, i) {
      for (let c = 0; c < x.length; c++) x[c] += this.weights["pos.wpe.weight"][i * x.length + c];
    }
  }
  class RoPE extends Scheme {
    rotate(q, k, x, i) {
      const D = this.config.n_embd / this.config.n_head;
      for (let j = 0; j < D; j += 2) { // a pair of channels
        const angle = i * 10000 ** (-j / D);
        for (let c = j; c < q.length; c += D) { // in each head
          turn(q, c, angle);
          turn(k, c, angle);
        }
      }
    }
  }
  /* Turns the pair of channels c and c + 1. */
  function turn(x, c, angle) {
    const real = x[c], cos = Math.cos(angle), sin = Math.sin(angle);
    x[c] = real * cos - x[c + 1] * sin;
    x[c + 1] = real * sin + x[c + 1] * cos;
  }
  class ALiBi extends Scheme {
    bias(scores, i, first, layer, head) {
      const H = this.config.n_head;
      const power = 2 ** Math.floor(Math.log2(H));
      const slope = head < power ? 2 ** (-8 * (head + 1) / power) : 2 ** (-4 * (2 * (head - power) + 1) / power);
      for (let j = first; j <= i; j++) scores[j - first] -= slope * (i - j);
    }
  }
  class FoX extends Scheme {
    rotate(q, k, x, i, layer, past) {
      const { "pos.w": w, "pos.b": b } = this.weights;
      for (let head = 0; head < this.config.n_head; head++) {
        const row = layer * this.config.n_head + head;
        let gate = b[row];
        for (let c = 0; c < x.length; c++) gate += x[c] * w[row * x.length + c];
        const sums = past[row] ??= []; // of log σ(gate), up to each token
        sums.push((sums.at(-1) ?? 0) - Math.log1p(Math.exp(-gate)));
      }
    }
    bias(scores, i, first, layer, head, past) {
      const sums = past[layer * this.config.n_head + head];
      for (let j = first; j <= i; j++) scores[j - first] += sums[i] - sums[j];
    }
  }
  const SCHEMES = { none: Scheme, learnable: Learnable, rope: RoPE, alibi: ALiBi, fox: FoX };

  // ---- The transformer ---------------------------------------------------------------------------------------------
  /* The weights in a file of tools/page.py: {name: Float32Array}. */
  function readWeights(file) {
    const bytes = Uint8Array.from(atob(file.weights), char => char.charCodeAt(0)).buffer;
    const weights = {};
    let at = 0; // the next byte
    for (const [name, shape] of Object.entries(file.shapes)) {
      const columns = shape.at(-1);
      const size = shape.reduce((a, b) => a * b);
      const integers = new Int8Array(bytes, at, size);
      const scales = new Float32Array(bytes.slice(at + size, at += size + 4 * size / columns)); // of the rows
      weights[name] = new Float32Array(shape.length > 1 ? size + 3 * columns : size); // `multiply` may read 3 rows more
      for (let n = 0; n < size; n++) weights[name][n] = integers[n] * scales[Math.floor(n / columns)];
    }
    return weights;
  }
  /* The keys (H, capacity, D) and values (H, D, capacity) of each layer, and what its scheme keeps, for up to n tokens. A
  window narrows those of the layers. */
  class Cache {
    constructor({ n_layer, n_embd }, n, window) {
      this.pos = 0; // tokens seen
      this.past = {};
      this.window = window || Infinity;
      this.capacity = n + 3; // `multiply` may read three more
      this.keys = Array.from({ length: n_layer }, () => new Float32Array(this.capacity * n_embd));
      this.values = Array.from({ length: n_layer }, () => new Float32Array(this.capacity * n_embd));
    }
  }
  class Model {
    constructor(file) {
      if (file.config.n_embd / file.config.n_head % 4 !== 0) throw Error("the head size must be a multiple of 4");
      Object.assign(this, file);
      this.weights = readWeights(file);
      this.layerSchemes = file.schemes.map(name => new SCHEMES[name](file.config, this.weights));
      this.pos = this.layerSchemes[0]; // which embeds: a scheme that does so is that of all layers
      const buffer = width => new Float64Array(BLOCK * width * file.config.n_embd); // doubles, as the scores
      this.buffers = { x: buffer(1), normed: buffer(1), qkv: buffer(3), y: buffer(1), out: buffer(1), mlp: buffer(4) };
    }
    get limit() { return this.pos.limit; }
    encode(text) { return Array.from(text, char => this.chars.indexOf(char)); }
    cache(n, window) { return new Cache(this.config, n, window); }
    /* Feeds the ids, which follow those in the cache, in blocks. Yields the logits (T, V) of each block. */
    *feed(ids, cache) {
      for (let start = 0; start < ids.length; start += BLOCK) yield this.block(ids.slice(start, start + BLOCK), cache);
    }
    block(ids, cache) {
      const { n_embd: C, n_layer: L, vocab_size: V } = this.config;
      const { x, normed, qkv, y, out, mlp } = this.buffers;
      const T = ids.length;
      const wte = this.weights["transformer.wte.weight"];
      ids.forEach((id, t) => {
        const row = x.subarray(t * C, (t + 1) * C);
        row.set(wte.subarray(id * C, (id + 1) * C));
        this.pos.embed(row, cache.pos + t);
      });
      for (let layer = 0; layer < L; layer++) {
        const weight = name => this.weights[`transformer.h.${layer}.${name}.weight`];
        normalize(normed, x, weight("ln_1"), T);
        multiply(qkv, normed, weight("attn.c_attn"), T, 3 * C, C, 3 * C, C, C);
        this.remember(layer, cache, T);
        this.attend(layer, cache, T);
        multiply(out, y, weight("attn.c_proj"), T, C, C, C, C, C);
        for (let n = 0; n < T * C; n++) x[n] += out[n];
        normalize(normed, x, weight("ln_2"), T);
        multiply(mlp, normed, weight("mlp.c_fc"), T, 4 * C, C, 4 * C, C, C);
        for (let n = 0; n < T * 4 * C; n++) mlp[n] = gelu(mlp[n]);
        multiply(out, mlp, weight("mlp.c_proj"), T, C, 4 * C, C, 4 * C, 4 * C);
        for (let n = 0; n < T * C; n++) x[n] += out[n];
      }
      cache.pos += T;
      normalize(normed, x, this.weights["transformer.ln_f.weight"], T);
      const logits = new Float32Array(T * (V + 3));
      multiply(logits, normed, wte, T, V, C, V + 3, C, C);
      return ids.map((_, t) => logits.subarray(t * (V + 3), t * (V + 3) + V));
    }
    /* Rotates the block's queries and keys, and puts its keys and values into the cache. */
    remember(layer, cache, T) {
      const { n_embd: C, n_head: H } = this.config;
      const { qkv, normed } = this.buffers;
      const D = C / H;
      for (let t = 0, i = cache.pos; t < T; t++, i++) {
        const [q, k, v] = [0, 1, 2].map(n => qkv.subarray((3 * t + n) * C, (3 * t + n + 1) * C));
        this.watch?.token(layer, q, k);
        this.layerSchemes[layer].rotate(q, k, normed.subarray(t * C, (t + 1) * C), i, layer, cache.past);
        for (let h = 0; h < H; h++) cache.keys[layer].set(k.subarray(h * D, (h + 1) * D), (h * cache.capacity + i) * D);
        for (let c = 0; c < C; c++) cache.values[layer][c * cache.capacity + i] = v[c];
      }
    }
    /* y (T, C): for each head, the averages of the values by the softmax of the scores. */
    attend(layer, cache, T) {
      const { n_embd: C, n_head: H } = this.config;
      const { qkv, y } = this.buffers;
      const D = C / H;
      const window = Math.min(cache.window, this.windows[layer] || Infinity);
      const first = Math.max(0, cache.pos - window + 1); // the first key that the block sees
      const S = cache.pos + T - first;
      const width = S + 3;
      const scores = new Float64Array(T * width); // doubles halve the error of the logits, at no cost
      for (let h = 0; h < H; h++) {
        const keys = cache.keys[layer].subarray((h * cache.capacity + first) * D);
        const values = cache.values[layer].subarray(h * D * cache.capacity + first);
        multiply(scores, qkv.subarray(h * D), keys, T, S, D, width, 3 * C, D);
        const sums = [];
        for (let t = 0, i = cache.pos; t < T; t++, i++) {
          const row = scores.subarray(t * width, t * width + S);
          const end = i + 1 - first;
          for (let j = 0; j < end; j++) row[j] /= Math.sqrt(D);
          this.layerSchemes[layer].bias(row, i, first, layer, h, cache.past);
          this.watch?.scores(layer, h, i, first, row);
          sums[t] = softmax(row, Math.max(0, end - window), end);
          this.watch?.weights(layer, h, i, first, row, sums[t]);
        }
        multiply(y.subarray(h * D), scores, values, T, D, S, C, width, cache.capacity);
        for (let t = 0; t < T; t++) for (let c = 0; c < D; c++) y[t * C + h * D + c] /= sums[t];
      }
    }
  }
  /* Turns scores start … end − 1 into exponentials, and the others into 0. Returns the sum. */
  function softmax(row, start, end) {
    let max = -Infinity, sum = 0;
    for (let j = start; j < end; j++) if (row[j] > max) max = row[j];
    for (let j = start; j < end; j++) sum += row[j] = Math.exp(row[j] - max);
    row.fill(0, 0, start).fill(0, end);
    return sum;
  }

  return { Model };
}
