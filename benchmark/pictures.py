"""Draws docs/seeing.png from benchmark/:  python -m benchmark.pictures"""

import numpy as np

from benchmark.results import ROOT, read_lines, recall_of, rise_of
from evaluation.pictures import figure_of, label_ends, scheme_styles, symlog


def draw_seeing():
    """A point for each scheme with kept answers: does its loss rise on text, and does it find what is far?"""
    figure, (axes,) = figure_of(1, "Rise of the loss on text against recall, at 16 times the training length", 8, 6)
    symlog(axes)
    lines = read_lines(".")
    names = [name for name in sorted(read_lines("recall")) if len(recall_of(name)[0])]
    ends = []
    for style, name in zip(scheme_styles(names), names, strict=True):
        found, n_models = recall_of(name)
        _, rise, width = rise_of(lines[name])
        share = found.mean()
        spread = [[share - found.min()], [found.max() - share]]
        axes.errorbar(share, rise, width, spread, elinewidth=0.8, **style | {"linestyle": "none"})
        label = name if len(found) == n_models else f"{name} ({len(found)} of {n_models})"
        ends.append((label, style["color"], (found.max(), rise)))
    axes.set_xlabel("far facts found, by the models that learned the task (and their range)")
    axes.set_xticks(np.arange(6) / 5, [f"{share:.0%}" for share in np.arange(6) / 5])
    axes.set_ylabel("rise of the loss from its best length (nats, log beyond 0.1; ±: 95%)")
    axes.grid(alpha=0.25)
    label_ends(axes, ends, apart=0.04)
    return figure


if __name__ == "__main__":
    draw_seeing().savefig(ROOT / "docs" / "seeing.png")
