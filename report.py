"""What a person sees of a length evaluation: the table and the picture."""

import math

import numpy as np

from bands import KINDS
from pictures import figure_of, length_axis, line_style, mark_training_length

KINDS_IN_WORDS = ("none beyond the training length", "another document's", "a shuffled one")


def cell(row, is_training_length, protocol):
    """One run at one length, as text."""
    if row is None:
        return "—"
    text = f"{row['loss']:.3f}"
    if "gain_over_cut" in row:
        return text + "".join(f"  {row[f'gain_over_{k}']:+.3f} ±{row[f'gain_over_{k}_band']:.3f}" for k in KINDS)
    if is_training_length:
        return f"{text}  training length"
    text += f"  {row['delta']:+.3f} ±{row['band']:.3f}"
    if "delta_seed_sd" in row:
        text += f", seeds ±{row['delta_seed_sd']:.3f}"
    if protocol == "nonoverlapping":
        text += f"  real {row['real']:+.3f} ±{row['real_band']:.3f}" if "real" in row else " " * 21
    return text


def table(results, lengths, protocol, width=96):
    """Context length × run, as many beside each other as fit."""
    cells = {
        name: [cell(r["rows"][n], n == r["training_length"], protocol) for n in lengths] + [f"L* {star(r)}"]
        for name, r in results.items()
    }
    wide = 2 + max(len(text) for name, column in cells.items() for text in (name, *column))
    names, columns, tables = list(cells), max(1, width // wide), []
    for some in (names[i : i + columns] for i in range(0, len(names), columns)):
        rows = [["context", *some], *([str(n), *(cells[name][i] for name in some)] for i, n in enumerate(lengths))]
        rows.append(["", *(cells[name][-1] for name in some)])
        tables.append("\n".join(f"{first:>7}  " + "".join(f"{text:>{wide}}" for text in rest) for first, *rest in rows))
    return "\n\n".join(tables)


def star(result):
    """The breakdown length in words."""
    n, T = result["L_star"], result["training_length"]
    if n is None:
        defined = max(length for length, row in result["rows"].items() if row is not None)
        beyond = max(result["rows"]) > T
        return f"> {defined}" if defined > T else "undefined" if beyond else "not looked for"
    return f"= {n} ({n / T:g}×)"


def draw(results, lengths, title, base, protocol):
    """Loss against context length, one line with a band per run, undefined is a gap; beside it the entropy of attention
    or, under context, what the true context gains over another document's."""
    panels = {"loss": "loss (nats per token)"}
    if protocol == "fixed":
        panels["entropy"] = "entropy of attention (nats)"
    if protocol == "context":
        panels = {f"gain_over_{k}": f"nats gained over {what}" for k, what in zip(KINDS, KINDS_IN_WORDS, strict=True)}
    figure, all_axes = figure_of(len(panels), width=8 if len(panels) == 1 else 6, height=5, title=title)
    xlabel = "positions up to" if protocol == "position" else "context length (tokens)"
    for axes, (key, ylabel) in zip(all_axes, panels.items(), strict=True):
        for i, (name, result) in enumerate(results.items()):
            rows = [result["rows"][n] or {} for n in lengths]
            y = np.array([row.get(key, math.nan) for row in rows])
            band = np.array([row.get("band" if key == "loss" else f"{key}_band", 0.0) for row in rows])
            style = line_style(i)
            trained = result["training_length"]
            defined = all(row for n, row in zip(lengths, rows, strict=True) if n > trained)
            undefined = "" if defined else f" (undefined past {trained})"
            axes.plot(lengths, y, label=name + undefined, **style)
            axes.fill_between(lengths, y - band, y + band, color=style["color"], alpha=0.2, linewidth=0)
            for own in result.get("seeds", {}).values():
                y = [(own[n] or {}).get(key, math.nan) for n in lengths]
                axes.plot(lengths, y, color=style["color"], linewidth=0.6, alpha=0.6)
        length_axis(axes, lengths, xlabel)
        for n in sorted({r["training_length"] for r in results.values()}):
            mark_training_length(axes, n)
        axes.set_ylabel(ylabel)
    all_axes[0].legend(frameon=False)
    base.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(f"{base}.png", dpi=150 if len(panels) == 1 else 110)
