"use strict";
/* Explore: the kept results of the benchmark, as the tables of its pages have them. */
const COLUMNS = "seeds|loss at 1×|minus rope|Δ at 2×|Δ at 4×|Δ at 8×|Δ at 16×|loss at 16×|verdict".split("|");
const FIRST = ["dape", "rope_nope", "fox5", "alibi", "t5", "none", "rope"]; // chosen at the start
const chosen = new Map(); // name, with the setting -> row

const nameOf = row => row[""].replaceAll("`", "");
const colourOf = name => `hsl(${[...chosen.keys()].indexOf(name) * 137 + 20}deg 70% var(--lightness))`;
/* [length, loss] of the benchmark's row for a panel; empty if there is none, or not yet. */
function measured(panel) {
  const window = +panel.window.value;
  const name = window ? `${panel.name}-window${window}` : panel.name;
  const row = data[panel.name] && data.results?.[window ? "window" : "."].find(row => nameOf(row) === name);
  return Object.entries(row?.losses ?? {}).map(([multiple, losses]) => [panel.trained * multiple, mean(losses)]);
}
/* The rows of a setting, to choose from. */
function listRows() {
  const setting = $("setting").value;
  const labels = data.results[setting].map(row => {
    const name = setting === "." ? nameOf(row) : `${setting}: ${nameOf(row)}`;
    const onchange = ({ target }) => {
      target.checked ? chosen.set(name, row) : chosen.delete(name);
      drawResults();
    };
    return make("label", {}, make("input", { type: "checkbox", checked: chosen.has(name), onchange }), nameOf(row));
  });
  $("rows").replaceChildren(...labels);
}

function drawResults() {
  const curves = [];
  for (const [name, row] of chosen) {
    const points = Object.entries(row.losses);
    const colour = colourOf(name);
    for (let seed = 0; seed < row.seeds; seed++)
      curves.push({ points: points.map(([n, losses]) => [n, losses[seed]]), colour, style: "seed" });
    curves.push({ points: points.map(([n, losses]) => [n, mean(losses)]), colour, style: "mean" });
  }
  const multiples = curves.flatMap(({ points }) => points.map(([n]) => n));
  const losses = curves.flatMap(({ points }) => points.map(([, loss]) => loss));
  const low = Math.min(...losses) - 0.02;
  const high = $("whole").checked ? Math.max(...losses) + 0.02 : low + 0.5;
  const x = [Math.min(...multiples), Math.max(...multiples)];
  const label = n => `${+n.toFixed(2)}×`;
  const axes = { x, y: [low, high], grid: high - low > 1 ? 0.5 : 0.1, trained: 1, margin: 26, label };
  if (chosen.size) drawChart($("chart"), axes, curves);
  const head = make("tr", {}, make("th"), ...COLUMNS.map(textContent => make("th", { textContent })));
  const rows = [...chosen].map(([name, row]) => {
    const swatch = make("i", { style: `background: ${colourOf(name)}` });
    const cells = COLUMNS.map(column => make("td", { textContent: row[column] ?? "" }));
    return make("tr", {}, make("th", {}, swatch, name), ...cells);
  });
  $("table").replaceChildren(head, ...rows);
}

views.explore = {
  async show() {
    await loadData("results");
    if (!$("setting").length) {
      for (const value of Object.keys(data.results))
        $("setting").append(make("option", { value, textContent: value === "." ? say("baseline", "基准") : value }));
      $("setting").value = ".";
      for (const row of data.results["."]) if (FIRST.includes(nameOf(row))) chosen.set(nameOf(row), row);
    }
    listRows();
    drawResults();
  },
};
$("setting").onchange = listRows;
$("whole").onchange = drawResults;
