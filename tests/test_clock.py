"""benchmark/clock.py: how a model undoes ALiBi."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, in_one_line

import benchmark.rounded  # noqa: F401 (it registers alibi_rounded)
from benchmark import clock
from benchmark.results import read_row, read_rows, rise_of
from benchmark.tokens import CLASSES
from eval_length import signed
from evaluation.statistics import interval
from model import GPT, GPTConfig
from run.checkpoint import load_checkpoint


def test_a_move_of_nothing_leaves_the_model_s_own_losses(trained, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "TEXTS", 20)
    run = trained("alibi", n_layer=2, block_size=128)
    assert clock.main([str(run), f"{tmp_path}/clock.npz"]) == 0
    measured = np.load(tmp_path / "clock.npz")
    model = load_checkpoint(run).model(torch.device("cpu"))
    with torch.no_grad():
        tokens, *_ = clock.read(model, clock.data.load(dataset).val)
        logits = model.lm_head(model.hidden(tokens[:, -129:-1], last=32))
    losses = F.cross_entropy(logits.mT, tokens[:, -32:], reduction="none")
    assert measured["short"][0] == pytest.approx(losses.numpy(), abs=1e-5)


def test_half_of_a_slope_is_undone_if_scores_grow_half_as_fast_with_the_distance():
    slope = 0.25

    def c_attn(x):
        return torch.cat([torch.ones_like(x), -slope / 2 * x, x], dim=-1)  # q, k and v of one head with one channel

    block = SimpleNamespace(ln_1=lambda x: x, attn=SimpleNamespace(c_attn=c_attn))
    model = SimpleNamespace(
        pos=SimpleNamespace(slopes=[[[slope]]]),
        transformer=SimpleNamespace(h=[block]),
    )
    states = torch.arange(256.0).expand(1, 3, -1)[..., None]  # (layers, texts, tokens, C): each token's place
    assert np.ravel(clock.undone(model, states)) == pytest.approx([0.5])


def test_a_head_that_looks_everywhere_gives_each_source_its_share(monkeypatch):
    tokens = torch.arange(513).repeat(2, 1)
    tokens[0, 500:503] = tokens[0, 200:203]  # a copy from 300 back, of which only the last token has two before it
    tokens[1, 500:503] = tokens[1, 400:403]  # 100 back: too near
    monkeypatch.setattr(clock, "attention_scores", lambda model, x: [torch.zeros(2, 3, 512, 512)])
    (weights,) = clock.copying(None, tokens)
    assert weights.tolist() == pytest.approx([1 / 502] * 3)


def test_rounding_changes_nothing_up_to_position_256():
    config = GPTConfig(n_layer=2, n_head=4, n_embd=64, vocab_size=50, pos_scheme="alibi")
    idx = torch.randint(50, (1, 600))
    with torch.no_grad():
        exact = GPT(config).hidden(idx)
        rounded = GPT(replace(config, pos_scheme="alibi_rounded")).hidden(idx)
    differences = (exact - rounded).abs().amax((0, 2))
    assert differences[:257].max() == 0
    assert differences[257:].min() > 1e-3


def arrays_of(name):
    """What benchmark.clock kept of a model."""
    return np.load(ROOT / f"benchmark/clock/arrays/{name}.npz")


def moved(kept):
    """The losses of the kept texts, (texts,): short and long as they are, moved, and moved in random directions."""
    return [(x[0], x[1], x[2:].mean(0)) for x in (kept["short"].mean(-1), kept["long"].mean(-1))]


def minus_short(losses, kept):
    """The mean of losses (texts,) minus that of the short texts, with its ±, as the page has it."""
    return signed(*interval([losses[None] - kept["short"][0].mean(-1)], kept["documents"]))


def test_the_page_has_the_numbers_of_the_kept_file():
    page = in_one_line("docs/alibi.md")
    kept = arrays_of("alibi-17M")
    for context in (512, 768, 1024, 2048):
        shares = kept["undone"][context // 128 - 2, 4:, 4:6]
        assert f"{shares.min():.2f} to {shares.max():.2f}" in page
    copying = kept["copying"][4:, 4:6]
    others = kept["copying"].copy()
    others[4:, 4:6] = 0
    assert f"give {copying.min():.2f} to {copying.max():.2f} of" in page
    assert others.max() < 0.03 and "all others less than 0.03" in page
    undone = kept["undone"][2]  # at 512 tokens
    undone[4:, 4:6] = 0
    *_, second, first = np.sort(undone, axis=None)
    assert f"Two others undo {second:.2f} and {first:.2f} after 512" in page
    assert "{:.2f}, {:.2f}, {:.2f}, {:.2f} and {:.2f}".format(*kept["place"][3:8]) in page

    row = read_row("clock/alibi-17M-window512-layers_4_flat_from4_flat_to6_4")  # without two heads' slopes
    assert f"on short texts, its loss is {row.losses[512].mean():.3f}" in page
    short, long = moved(kept)
    for losses in (*long, *short[1:], row.losses[2048][0]):
        assert f"| {losses.mean():.3f} | {minus_short(losses, kept)} |" in page
    gains = [interval([(long[0] - losses)[None]], kept["documents"]) for losses in (long[1], row.losses[2048][0])]
    taken, repaired = [f"{mean:.3f} ±{width:.3f}" for mean, width in gains]
    assert f"the move takes {taken}, and the last row, a repair without training, {repaired};" in page


def copied():
    """Which scored tokens of the small rows are copies: (blocks, scored)."""
    return np.load(ROOT / "benchmark/clock/small/seen.npy") == CLASSES.index("seen only farther")


def losses_of_copies(name, model=0):
    """Of a model of a small row, or of all: the loss at 512, that of copies at 64, 512 and 2,048, and the rise, as the
    page has them."""
    row = read_row(f"clock/small/{name}-window512")
    chosen = slice(None) if model is None else [model]
    copies = copied()
    losses = [row.arrays[f"{n}-tokens"][chosen][:, copies].mean(dtype=float) for n in (64, 512, 2048)]
    short, long = row.losses[512][chosen], row.losses[2048][chosen]
    rise = signed(*interval([long - short], row.documents))
    return f"{short.mean():.3f}", ", ".join(f"{loss:.2f}" for loss in losses), rise


def share_of_copies(name):
    """The share of copies in the rise, of each model of a small row."""
    row = read_row(f"clock/small/{name}-window512")
    copies = copied()
    rises = row.arrays["2048-tokens"] - row.arrays["512-tokens"]
    return (rises * copies).sum((1, 2)) / rises.sum((1, 2))


def moved_back(*models):
    """The rise of the kept texts of one model or more, and what is left of it where they are moved, as the page has
    them."""
    unmoved = []
    back = []
    for kept in models:
        (short, *_), (long, long_moved, _) = moved(kept)
        unmoved.append(long - short)
        back.append(long_moved - short)
    return f"{np.mean(unmoved):+.3f} → {signed(*interval([np.stack(back)], models[0]['documents']))}"


def effects(kept):
    """The share of the rise of the kept texts that the move takes away, and the share that random directions add."""
    (short, *_), (long, back, random) = moved(kept)
    rise = (long - short).mean()
    return 1 - (back - short).mean() / rise, (random - short).mean() / rise - 1


def clock_and_head(*models, at_512=2):
    """Of one model or more, as the page has them: R² in layers 2 and 3, and of their heads 2 the weight on sources and
    the share undone at 512 tokens, which is the context `at_512` of the kept ones."""
    means = [
        np.mean([kept["place"][2:4] for kept in models], axis=0),
        np.mean([kept["copying"][2:, 2] for kept in models], axis=0),
        np.mean([kept["undone"][at_512, 2:, 2] for kept in models], axis=0),
    ]
    return [f"{first:.2f}, {second:.2f}" for first, second in means]


def test_the_page_has_the_numbers_of_the_small_models():
    page = in_one_line("docs/alibi.md")
    rows = [(f"ALiBi, {step:,} steps", f"step{step}", f"step{step}", 0) for step in (465, 930, 1395)]
    rows += [("ALiBi", "alibi", "alibi-1337", 0)]
    rows += [(f"ALiBi, seed {seed}", "alibi", f"alibi-{seed}", seed) for seed in (1, 2)]
    for words, name, file, model in rows:
        kept = arrays_of(file)
        cells = [words, *losses_of_copies(name, model), *clock_and_head(kept)]
        if not name.startswith("step"):
            cells.append(moved_back(kept))
        assert f"| {' | '.join(cells)} |" in page
        assert np.abs(kept["undone"][-1, 2:, 2]).max() < 0.05

    taken = []
    without_copying = []  # the shares undone by head 3 of layer 2
    others = []  # what the page says in ranges: rises moved randomly, short texts moved, and randomly
    for seed, heads in (1337, [[2, 2], [3, 2]]), (1, [[3, 2]]), (2, [[3, 2]]):
        kept = arrays_of(f"alibi-{seed}")
        assert np.argwhere(kept["copying"] >= 0.05).tolist() == heads
        (short, short_moved, short_random), (*_, random) = moved(kept)
        share, _ = effects(kept)
        taken.append(f"{share:.0%}")
        without_copying.append(kept["undone"][2, 2, 3])
        others.append([(losses - short).mean() for losses in (random, short_moved, short_random)])
    assert f"takes {taken[0]}, {taken[1]} and {taken[2]} of the rise" in page
    assert f"undoes {min(without_copying):.2f} to {max(without_copying):.2f} without copying" in page
    ranges = [
        f"{low:.2f} to {high:.2f}" for low, high in zip(np.min(others, axis=0), np.max(others, axis=0), strict=True)
    ]
    assert "it becomes {}; short texts get worse by {}, randomly by {})".format(*ranges) in page

    shares = share_of_copies("alibi")
    assert f"{copied().mean():.0%} of the tokens, {shares.min() * 100:.0f} to {shares.max():.0%} of the rise" in page
    for step, has_begun in (465, False), (930, True):
        row = read_row(f"clock/small/step{step}-window512")
        for rises in row.losses[2048] - row.losses[512]:  # of one model
            mean, width = interval([rises[None]], row.documents)
            assert (mean - width > 0) == has_begun


def test_the_page_has_the_numbers_of_the_controls_and_cures():
    page = in_one_line("docs/alibi.md")
    words_of = {
        "rope": "RoPE",
        "fox5": "FoX (`fox5`)",
        "alibi_flat": "no slope in heads 2 and 3",
        "alibi_windows": "windows of 64 in layers 0 and 1",
        "alibi_preceded": "1,024 tokens in training, the first half not scored",
        "alibi_gentle": "slopes ÷ 16",
    }
    for name, words in words_of.items():
        assert len(read_row(f"clock/small/{name}-window512").seeds) == 3
        cells = [f"{words}, three models", *losses_of_copies(name, None)]
        assert f"| {' | '.join(cells)} |" in page

    preceded = [arrays_of(f"alibi_preceded-{seed}") for seed in (1337, 1, 2)]
    cells = clock_and_head(*preceded, at_512=0)  # contexts start at half of the training length
    assert f"| {' | '.join(cells)} | {moved_back(*preceded)} (1,024 to 4,096) |" in page
    at_1024 = [kept["undone"][2, 3, 2] for kept in preceded]
    assert f"the head undoes {min(at_1024):.2f} to {max(at_1024):.2f}" in page
    losses = read_row("clock/small/alibi_preceded-window512").losses
    assert (losses[1024].mean(1) < losses[512].mean(1)).all()

    place = []
    for seed, head in (1337, 3), (1, 2), (2, 2):
        flat = arrays_of(f"alibi_flat-{seed}")
        assert np.argwhere(flat["copying"] >= 0.05).tolist() == [[3, head]]  # a head without a slope
        place.append(flat["place"].max())
    assert f"(R² up to {max(place):.2f})" in page

    gentle = [arrays_of(f"alibi_gentle-{seed}") for seed in (1337, 1, 2)]
    assert max(kept["copying"].max() for kept in gentle) < 0.05  # no head copies
    shares = share_of_copies("alibi_gentle")
    assert f"not by copies ({shares.mean():.0%})" in page
    assert f"| {' | '.join(clock_and_head(*gentle))} | {moved_back(*gentle)} |" in page


def test_the_card_has_the_rise_of_each_model():
    card = in_one_line("benchmark/replications.md")
    for name in ("alibi", "alibi_windows", "alibi_gentle", "alibi_preceded"):
        row = read_row(f"clock/small/{name}-window512")
        rise_by_seed = dict(zip(row.seeds, (row.losses[2048] - row.losses[512]).mean(1), strict=True))
        rises = [rise_by_seed[seed] for seed in (1337, 1, 2)]
        assert "by {:.3f}, {:.3f} and {:.3f}, on average".format(*rises) in card


def test_the_card_has_the_numbers_of_the_models_with_text_before_all_that_is_scored():
    card = in_one_line("benchmark/replications.md")
    undone = []
    place = []
    taken = []
    added = []
    for kept in [arrays_of(f"alibi_preceded-{seed}") for seed in (1337, 1, 2)]:
        assert np.argwhere(kept["copying"] >= 0.05).tolist() == [[3, 2]]
        undone.append(kept["undone"][2, 3, 2])
        assert kept["undone"][4:, 3, 2].max() < 0.05
        place.append(kept["place"].max())
        share_taken, share_added = effects(kept)
        taken.append(share_taken)
        added.append(share_added)
    assert "undoes {:.2f}, {:.2f} and {:.2f} of its slope".format(*undone) in card
    assert "R² is {:.2f}, {:.2f} and {:.2f} for the place".format(*place) in card
    words = "takes {:.0%}, {:.0%} and {:.0%} of the rise away; randomly, it changes by {:.0%}, {:.0%} and {:.0%}"
    assert words.format(*taken, *added) in card


def test_the_card_has_the_numbers_of_alibi_by_length():
    card = in_one_line("benchmark/replications.md")
    rows = read_rows("clock/characters")
    for row in rows.values():
        assert rise_of(row)["verdict"] == "flat"
    steps = [850, 3400, 6900]

    read = []
    undone = []
    for kept in [arrays_of(f"{n}-step{step}") for n in (128, 256) for step in steps]:
        read.append(kept["place"].max())
        assert kept["copying"][3, 3] == kept["copying"].max() >= 0.05
        undone.append(kept["undone"][2, 3, 3])
        assert kept["undone"][-1, 3, 3] < 0
    assert f"R² is {max(read):.2f} at most" in card
    assert f"Of its slope it undoes {min(undone):.2f} to {max(undone):.2f} at 1×, and nothing at 4×" in card

    first, second, last = [arrays_of(f"512-step{step}") for step in steps]
    read_at_512 = [max(0, kept["place"].max()) for kept in (first, second, last)]
    assert "R² is {:.2f}, {:.2f} and {:.2f}".format(*read_at_512) in card
    shares = [kept["undone"][2, [2, 3], [3, 2]] for kept in (second, last)]
    words = "undo {:.2f} and {:.2f} of it after 3,400 steps and {:.2f} and {:.2f} after 6,900, at 1×"
    assert words.format(*np.ravel(shares)) in card
    assert np.argwhere(last["copying"] > 0.1).tolist() == [[2, 3], [3, 2], [3, 3]]
    assert last["undone"][2, 3, 3] < 0
    assert (last["undone"][-1, 2:] < 0.005).all()
    assert np.argwhere(last["place"] > clock.CLEAR).tolist() == [[3]]
    taken, added = effects(last)
    assert f"takes away {taken:.0%} of the rise in 48 other texts; random directions add {added:.0%}" in card

    risen = rise_of(rows["512-step6900-window512"])
    words = f"with 512 (R² {read_at_512[-1]:.2f}, rise {risen['mean']:.3f} ±{risen['width']:.3f}, flat by our rule)"
    assert f"{words}, not with 128 or 256 ({max(read):.2f})" in in_one_line("docs/alibi.md")
