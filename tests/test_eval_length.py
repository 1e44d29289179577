import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import data
import eval_length as E
import run
import train
from bands import KINDS, breakdown, paired_bands, wilson
from model import SCHEMES, GPTConfig


@pytest.fixture(scope="module")
def runs(dataset, tmp_path_factory):
    """A run of every scheme, trained at 16 tokens for some steps."""
    root = tmp_path_factory.mktemp("runs")
    for scheme in SCHEMES:
        train.main([
            f"--dataset={dataset}", f"--pos_scheme={scheme}", f"--out_dir={root}/{scheme}", "--n_layer=1", "--n_head=2",
            "--n_embd=16", "--block_size=16", "--batch_size=4", "--max_iters=4", "--device=cpu",
        ])  # fmt: skip
    return root


def flags(tmp_path, *more):
    return ["--block_tokens=1", "--blocks=20", f"--results_dir={tmp_path}/results", "--device=cpu", *more]


def all_runs(runs):
    return [str(runs / s) for s in SCHEMES]


def read(tmp_path, name="length"):
    return json.loads((tmp_path / "results" / f"{name}.json").read_text(), parse_constant=pytest.fail)  # no NaN


# ----------------------------------------------------------------------------------------------------------
# What is scored


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(4, 64), st.integers(1, 8), st.integers(2, 20), st.integers(0, 9))  # fmt: skip
def test_blocks_do_not_overlap_and_stay_in_their_document_where_they_can(sizes, longest, stride, n, seed):
    starts = np.cumsum([0, *sizes[:-1]])
    split = data.Split(np.zeros(sum(sizes), np.uint16), starts)
    candidates = np.arange(longest, sum(sizes), stride)
    if len(candidates) < n:
        with pytest.raises(ValueError, match=f"enough for {len(candidates)} blocks"):
            E.choose_ends(split, longest, stride, n, seed)
        return
    ends, documents, crossing = E.choose_ends(split, longest, stride, n, seed)
    assert len(ends) == n and (np.diff(ends) >= stride).all() and ends[0] >= longest and ends[-1] < sum(sizes)
    assert [int(np.flatnonzero(starts <= e)[-1]) for e in ends] == list(documents)

    def inside(e):
        return e - longest >= starts[starts <= e].max()

    assert crossing == pytest.approx(1 - np.mean([inside(e) for e in ends]))
    if crossing:
        assert sum(map(inside, ends)) == sum(map(inside, candidates))  # none was left out


class KnownModel(torch.nn.Module):
    """Its loss at position p of a window is f(p), whatever the text: logits [log q, log(1−q)…] over three tokens that
    give every target the same probability exp(−f(p))."""

    config = GPTConfig(block_size=16, vocab_size=3)

    class pos:
        max_positions = None

    def __init__(self, f):
        super().__init__()
        self.f, self.unused = f, torch.nn.Parameter(torch.zeros(1))

    def hidden(self, idx, last):
        p = torch.arange(idx.size(1), dtype=torch.float64)[-last:]
        target_zero = self.f(p)  # every token of the text is 0
        return target_zero.expand(len(idx), -1)[..., None]

    def lm_head(self, loss):
        q = torch.exp(-loss)
        return torch.cat((q.log(), ((1 - q) / 2).log().expand(-1, 2)), dim=-1)


def known_losses(f, protocol, length, longest=128, trained=16):
    """What block_losses returns for a model whose loss at position p is f(p)."""
    cfg = E.EvalConfig(runs=("x",), protocol=protocol, block_tokens=4)
    split = data.Split(np.zeros(3000, np.uint16), np.array([0]))
    ends, documents, _ = E.choose_ends(split, longest + 12, longest, 10, seed=0)
    return E.block_losses(
        cfg, KnownModel(f), split, ends, documents, "", length, longest, torch.float32, lambda n: None
    )


@pytest.mark.parametrize("protocol", E.PROTOCOLS)
def test_protocols_return_the_loss_of_a_model_whose_loss_is_known(protocol):
    def f(p):
        return 0.5 + 1 / (p + 2) + 0.01 * (p > 40) * (p - 40)

    for length in (16, 32, 64, 128):
        expected = f(torch.arange(length, dtype=torch.float64)).numpy()
        losses = known_losses(f, protocol, length)
        windows, scored = {"sliding": (4, 4), "nonoverlapping": (128 // length, length), "position": (1, length)}.get(
            protocol, (1, 4)
        )
        assert losses.shape == (10, windows, scored)
        np.testing.assert_allclose(losses, np.broadcast_to(expected[-scored:], losses.shape), atol=1e-5)


def found_of(f, protocol, lengths, trained):
    """The saved losses of such a model, as `measure` makes them."""
    found = {str(n): known_losses(f, protocol, n, lengths[-1]).mean(axis=(1, 2)) for n in lengths}
    found["edge"] = known_losses(f, protocol, trained, lengths[-1])[:, :, -trained // 4 :].mean(axis=(1, 2))
    found["positions"] = known_losses(f, "position", lengths[-1], lengths[-1])[:, 0]
    return found | {"documents": np.arange(10), "bytes_per_token": np.array(2.0)}


def test_a_breakdown_is_found_where_it_was_planted():
    def f(p):
        return 1.0 + 0.5 * (p >= 40)

    lengths = [8, 16, 32, 64, 128]
    for protocol, star in {"fixed": 64, "sliding": 64, "nonoverlapping": 64, "position": 64}.items():
        cfg = E.EvalConfig(runs=("x",), protocol=protocol, block_tokens=4)
        rows, _ = E.summarise(cfg, found_of(f, protocol, lengths, 16), lengths, 16)
        assert breakdown(rows, 16, 0.1) == star, protocol
        assert breakdown(rows, 16, 0.6) is None and rows[32]["delta"] == pytest.approx(0, abs=1e-6)


def test_nonoverlapping_is_split_into_dilution_and_real_change():
    """A model that is poor at the first 8 positions of a window and the same from there on gains nothing by a longer one;
    one that gets worse from position 40 on does so by the mean of what it loses there."""
    lengths = [16, 32, 64, 128]
    cfg = E.EvalConfig(runs=("x",), protocol="nonoverlapping", block_tokens=128)
    for harm in (0.0, 0.3):
        found = found_of(lambda p: 1.0 + 1.0 * (p < 8) + harm * (p >= 40), "nonoverlapping", lengths, 16)  # noqa: B023
        rows, _ = E.summarise(cfg, found, lengths, 16)
        for n in (32, 64, 128):
            assert rows[n]["dilution"] == pytest.approx((1 - 16 / n) * (1.0 - 1.5), abs=1e-5)
            assert rows[n]["real"] == pytest.approx(harm * max(0, n - 40) / n, abs=1e-5)
            assert rows[n]["dilution"] + rows[n]["real"] == pytest.approx(rows[n]["delta"], abs=1e-9)


def test_a_model_that_cannot_look_further_gains_nothing_by_further_context(runs, dataset):
    """ALiBi with a window of 8 in its one layer, trained at 16: what lies beyond 16 is out of its sight, whatever it is."""
    checkpoint = run.load_checkpoint(runs / "alibi") | {"dataset": data.load(dataset)}
    cfg = E.EvalConfig(runs=("x",), protocol="context", block_tokens=2, blocks=12, window=8, device="cpu")
    found, *_ = E.measure(cfg, checkpoint, checkpoint["dataset"], [16, 32, 64])
    rows, _ = E.summarise(cfg, found, [16, 32, 64], 16)
    seen, *_ = E.measure(dataclasses.replace(cfg, window=0), checkpoint, checkpoint["dataset"], [16, 32, 64])
    for n in (32, 64):
        for kind in KINDS:
            assert rows[n][f"gain_over_{kind}"] == pytest.approx(0, abs=1e-5)
        assert abs(seen[f"foreign-{n}"] - seen[str(n)]).max() > 1e-4  # without the window it does see it
        assert abs(seen[f"shuffled-{n}"] - seen[str(n)]).max() > 1e-4


def test_foreign_context_is_of_another_document_and_the_rest_is_kept():
    tokens = np.arange(600, dtype=np.uint16)
    split = data.Split(tokens, np.array([0, 200, 400]))
    ends, documents = np.array([150, 190, 350, 550]), np.array([0, 0, 1, 2])
    for kind in ("foreign", "shuffled"):
        for first, i in ((0, 0), (2, 2)):
            window = torch.from_numpy(tokens[ends[i] - 100 : ends[i] + 1].astype(np.int64))[None]
            before = window.clone()
            E.replaced(split, ends, documents, 100, 30, kind, seed=0)(window, first)
            assert torch.equal(window[0, 70:], before[0, 70:]) and not torch.equal(window[0, :70], before[0, :70])
            if kind == "shuffled":
                assert torch.equal(window[0, :70].sort().values, before[0, :70])
            else:
                assert np.searchsorted(split.docs, window[0, 69].item(), side="right") - 1 != documents[i]


def test_foreign_context_avoids_a_neighbour_whose_context_begins_in_the_same_document():
    """Of blocks whose contexts cross documents, the next one, at 250, would bring tokens 100 … 209: the window's own."""
    tokens = np.arange(700, dtype=np.uint16)
    split = data.Split(tokens, np.array([0, 220, 240]))
    ends, documents = np.array([180, 620, 250]), np.array([0, 2, 2])
    window = torch.from_numpy(tokens[30:181].astype(np.int64))[None]
    E.replaced(split, ends, documents, 150, 40, "foreign", seed=0)(window, 0)
    assert window[0, :110].tolist() == list(range(470, 580))
    window = torch.from_numpy(tokens[110:261].astype(np.int64))[None]  # crosses documents: 110 … 219 are of the first
    E.replaced(split, np.array([260, 330, 600]), np.array([2, 2, 2]), 150, 40, "foreign", seed=0)
    with pytest.raises(ValueError, match="no block has 110 tokens of other documents"):  # 330 brings 180 … 289
        E.replaced(split, np.array([260, 330]), np.array([2, 2]), 150, 40, "foreign", seed=0)(window, 0)
    with pytest.raises(ValueError, match="no block has 110 tokens of other documents before it: lower --lengths"):
        E.replaced(split, ends[[0, 2]], documents[[0, 2]], 150, 40, "foreign", seed=0)(window, 0)


def test_bits_per_byte_are_of_the_text_of_the_targets(tmp_path, gpt2_bpe):
    """Four tokens of 3, 1, 2 and 0 bytes, the last an end of text: 1.5 bytes a token."""
    tokenizer = data.tokenizer_from({"kind": "gpt2"})
    ids = [tokenizer.encode(t)[0] for t in (" of", "x", "ab", data.END_OF_TEXT)]
    split = data.Split(np.array([0, 0, *ids] * 3, np.uint16), np.array([0]))
    dataset = data.Dataset("x", split, split, tokenizer, {}, "")
    cfg = E.EvalConfig(runs=("x",), block_tokens=4)
    per_token = E.bytes_per_token(cfg, dataset, np.array([5, 11, 17]), 16)
    assert per_token == 1.5
    found = {"16": np.full(9, 3 * math.log(2)), "documents": np.arange(9), "bytes_per_token": per_token}
    assert E.summarise(cfg, found, [16], 16)[0][16]["bits_per_byte"] == pytest.approx(2)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@pytest.mark.parametrize("protocol", ["fixed", "sliding", "nonoverlapping"])
def test_block_losses_equal_one_plain_forward_per_window(runs, dataset, scheme, protocol, monkeypatch):
    model = run.load_model(run.load_checkpoint(runs / scheme), torch.device("cpu"))
    longest = 16 if model.pos.max_positions else 64
    split = data.load(dataset).val
    tokens = torch.from_numpy(split.tokens.astype(np.int64))
    cfg = E.EvalConfig(runs=("x",), protocol=protocol, block_tokens=3)
    ends, documents, _ = E.choose_ends(split, longest + 9, longest, 6, seed=0)
    for length in (longest // 4, longest):
        expected = []
        for e in ends:
            if protocol == "nonoverlapping":
                starts = range(e - longest, e, length)
                windows = [(tokens[None, s : s + length], tokens[None, s + 1 : s + length + 1]) for s in starts]
                expected.append(np.mean([model(x, y)[1].item() for x, y in windows]))
            else:  # the last three targets of a window, tokens end−2 … end; sliding: of four windows
                found = []
                for end in (e - 3 * np.arange(4 if protocol == "sliding" else 1)).tolist():
                    logits = model(tokens[None, end - length : end], tokens[None, end - length + 1 : end + 1])[0][
                        0, -3:
                    ]
                    found.append(torch.nn.functional.cross_entropy(logits, tokens[end - 2 : end + 1]).item())
                expected.append(np.mean(found))
        losses = E.block_losses(cfg, model, split, ends, documents, "", length, longest, torch.float32, lambda n: None)
        assert losses.mean(axis=(1, 2)) == pytest.approx(expected, abs=1e-5)


def test_entropy_of_uniform_attention_is_the_logarithm_of_the_number_of_keys(runs, dataset):
    model = run.load_model(run.load_checkpoint(runs / "none"), torch.device("cpu"))
    for block in model.transformer.h:
        torch.nn.init.zeros_(block.attn.c_attn.weight)
    idx = torch.randint(10, (2, 64))
    assert run.attention_entropy(model, idx, last=1) == pytest.approx(math.log(64), abs=1e-5)
    model.override(window=8)
    assert run.attention_entropy(model, idx, last=5) == pytest.approx(math.log(8), abs=1e-5)


# ----------------------------------------------------------------------------------------------------------
# Statistics


def test_bands_cover_the_truth_at_all_lengths_at_once_in_95_percent_of_draws(monkeypatch):
    """60 documents of unequal size whose effects are shared by their blocks; resampled blocks would cover far less."""
    monkeypatch.setattr("bands.RESAMPLES", 500)
    rng = np.random.default_rng(0)
    truth, hits, naive_hits, draws = np.array([0.3, 0.0, 0.5]), 0, 0, 300
    scale = np.array([0.2, 0.0, 0.4])  # the training length, in the middle, has no difference
    documents = np.repeat(np.arange(60), rng.integers(1, 16, 60))
    for i in range(draws):
        effect = rng.standard_normal((60, 3))[documents] + 0.5 * rng.standard_normal((len(documents), 3))
        mean, width, units, n = paired_bands(truth + scale * effect, documents, seed=i)
        hits += (abs(mean - truth) <= width).all()
        assert (units, n) == ("documents", 60) and width[1] == mean[1] == 0
        mean, width, *_ = paired_bands(truth + scale * effect, np.arange(len(documents)), seed=i)
        naive_hits += (abs(mean - truth) <= width).all()
    assert 0.91 <= hits / draws <= 0.98
    assert naive_hits / draws < 0.6


def test_few_documents_mean_that_blocks_are_resampled():
    differences = np.random.default_rng(0).standard_normal((50, 1))
    assert paired_bands(differences, np.zeros(50, int), 0)[2:] == ("blocks", 50)


def test_wilson_interval_as_published():
    """Newcombe 1998 (Statistics in Medicine 17, 857), method 3: 81 of 263 and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4) and wilson(0, 20)[0] == 0 and wilson(20, 20)[1] == 1


# ----------------------------------------------------------------------------------------------------------
# The command


def test_table_json_and_picture_over_all_schemes(runs, tmp_path, capsys):
    assert E.main([*all_runs(runs), *flags(tmp_path)]) == 0
    out = capsys.readouterr().out
    summary = read(tmp_path)
    assert list(summary["runs"]) == list(SCHEMES)
    for name, result in summary["runs"].items():
        assert list(result["rows"]) == ["4", "8", "16", "32", "64", "128", "256"]
        assert result["rows"]["16"]["delta"] == result["rows"]["16"]["band"] == 0
        undefined = [n for n, row in result["rows"].items() if row is None]
        assert undefined == (["32", "64", "128", "256"] if name == "learnable" else [])
        for row in filter(None, result["rows"].values()):
            assert math.isfinite(row["loss"]) and row["delta"] == pytest.approx(
                row["loss"] - result["rows"]["16"]["loss"]
            )
    tables = out.split("\ncontext  ")[1:]
    assert len(tables) == -(-len(SCHEMES) // 4)
    [with_learnable] = [t for t in tables if "learnable" in t.splitlines()[0]]
    last = with_learnable.split("    256  ")[1].splitlines()[0]
    assert last.split()[with_learnable.split().index("learnable") * 3] == "—" and "±" in last
    assert "the same 20 blocks of 1 tokens at every length" in out
    assert "tiny: 2 documents, 0% of the longest contexts cross documents, 1 bytes a token; bands over 20 blocks" in out
    assert (tmp_path / "results" / "length.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_done_is_not_done_again(runs, tmp_path, capsys, monkeypatch):
    arguments = [str(runs / "rope"), str(runs / "learnable"), *flags(tmp_path, "--seed=7")]
    E.main(arguments)
    first, before = capsys.readouterr().out, read(tmp_path)
    monkeypatch.setattr(E, "window_losses", None)  # a second computation would fail
    E.main(arguments)
    second = capsys.readouterr().out
    assert second.count("done before") == 2 and "done before" not in first
    assert read(tmp_path) == before
    with pytest.raises(TypeError):
        E.main([*arguments, "--seed=8"])


def test_other_settings_do_not_replace_what_was_measured(runs, tmp_path, capsys, monkeypatch):
    full = [str(runs / "alibi"), *flags(tmp_path, "--seed=21")]
    E.main(full)
    before, raw = read(tmp_path, "length-alibi"), (runs / "alibi" / "length.npz").read_bytes()
    E.main([*full, "--blocks=5"])
    assert read(tmp_path, "length-alibi") != before
    monkeypatch.setattr(E, "window_losses", None)
    for argv, blocks in (([*full, "--blocks=5"], 5), (full, 20)):
        E.main(argv)
        assert read(tmp_path, "length-alibi")["blocks"] == blocks
    assert read(tmp_path, "length-alibi") == before and (runs / "alibi" / "length.npz").read_bytes() == raw
    (runs / "alibi" / "length.npz").write_bytes(b"cut short")
    with pytest.raises(ValueError, match="alibi/length.npz is damaged"):
        E.main(full)
    (runs / "alibi" / "length.npz").unlink()


def test_an_interrupted_measurement_goes_on(runs, tmp_path, capsys, monkeypatch):
    arguments = [str(runs / "none"), *flags(tmp_path, "--seed=11")]
    original, lengths = E.window_losses, []

    def interrupt(model, tokens, starts, length, *rest):
        lengths.append(length)
        if len(lengths) == 4:
            raise KeyboardInterrupt
        return original(model, tokens, starts, length, *rest)

    monkeypatch.setattr(E, "window_losses", interrupt)
    with pytest.raises(KeyboardInterrupt):
        E.main(arguments)
    assert "stopped; what was measured is kept" in capsys.readouterr().out
    E.main(arguments)
    assert lengths == [4, 8, 16, 32, 32, 64, 128, 256]
    monkeypatch.setattr(E, "window_losses", None)
    E.main(arguments[:-1] + ["--seed=11", "--lengths=8,64,256"])  # a part of what is there
    assert "done before" in capsys.readouterr().out


def test_seeds_of_one_experiment_are_one_line_with_two_kinds_of_interval(runs, tmp_path, dataset, capsys):
    for seed in (1, 2):
        train.main([
            f"--dataset={dataset}", "--pos_scheme=rope", f"--out_dir={tmp_path}/rope-{seed}", "--n_layer=1", "--n_head=2",
            "--n_embd=16", "--block_size=16", "--batch_size=4", "--max_iters=4", "--device=cpu", f"--seed={seed}",
        ])  # fmt: skip
    E.main([str(runs / "rope"), f"{tmp_path}/rope-1", f"{tmp_path}/rope-2", str(runs / "alibi"), *flags(tmp_path)])
    found = read(tmp_path)["runs"]
    assert list(found) == ["rope", "alibi"] and set(found["rope"]["seeds"]) == {"rope", "rope-1", "rope-2"}
    own = [rows["64"]["delta"] for rows in found["rope"]["seeds"].values()]
    row = found["rope"]["rows"]["64"]
    assert row["delta"] == pytest.approx(np.mean(own)) and row["delta_seed_sd"] == pytest.approx(np.std(own, ddof=1))
    assert f"±{row['band']:.3f}, seeds ±{row['delta_seed_sd']:.3f}" in capsys.readouterr().out


def test_a_run_from_before_a_setting_was_there_is_of_the_same_experiment(runs):
    new = run.load_checkpoint(runs / "rope")
    old = new | {"config": {k: v for k, v in new["config"].items() if k not in ("init_from", "window", "seed")}}
    assert train.experiment_of(old) == train.experiment_of(new)
    for key, value in {"n_layer": 7, "init_from": "out/x"}.items():
        assert train.experiment_of(new | {"config": new["config"] | {key: value}}) != train.experiment_of(new)


@pytest.mark.parametrize("protocol", E.PROTOCOLS)
def test_every_protocol_runs_over_all_schemes(runs, tmp_path, protocol, capsys):
    more = ["--block_tokens=4"] if protocol == "sliding" else []
    base = ["--blocks=6", f"--results_dir={tmp_path}/results", "--device=cpu", "--lengths=8,16,32,64"]
    E.main([*all_runs(runs), *base, f"--protocol={protocol}", *more])
    name = "length" if protocol == "fixed" else f"length-{protocol}"
    rows = {scheme: r["rows"] for scheme, r in read(tmp_path, name)["runs"].items()}
    assert rows["learnable"]["32"] is None and rows["rope"]["32"]["loss"] > 0
    extra = {"fixed": "entropy", "nonoverlapping": "real", "context": "gain_over_shuffled"}.get(protocol, "band")
    assert math.isfinite(rows["rope"]["32"][extra])
    assert (tmp_path / "results" / f"{name}.png").exists() and "L*" in capsys.readouterr().out


def test_raw_losses_are_kept_per_block(runs, tmp_path):
    E.main([str(runs / "alibi"), *flags(tmp_path, "--lengths=8,16,64")])
    with np.load(runs / "alibi" / "length.npz") as raw:
        entropies = {"entropy-8", "entropy-16", "entropy-64"}
        assert set(raw) == {"key", "ends", "documents", "bytes_per_token", "8", "16", "64"} | entropies
        assert raw["64"].shape == raw["ends"].shape == raw["documents"].shape == (20,)
        delta = (raw["64"] - raw["16"]).mean()
    assert read(tmp_path, "length-alibi")["runs"]["alibi"]["rows"]["64"]["delta"] == pytest.approx(delta)


def test_nonoverlapping_and_another_dataset_have_files_of_their_own(runs, tmp_path, dataset):
    E.main([str(runs / "none"), *flags(tmp_path, "--protocol=nonoverlapping", f"--dataset={dataset}", "--blocks=5")])
    assert read(tmp_path, "length-nonoverlapping-tiny-none")["blocks"] == 5
    assert (runs / "none" / "length-nonoverlapping-tiny.npz").exists()


def test_a_grid_of_scalings_and_a_window(runs, tmp_path):
    E.main([str(runs / "rope"), *flags(tmp_path, "--rope_scaling=none,linear,ntk,yarn")])
    found = read(tmp_path, "length-none-linear-ntk-yarn-rope")["runs"]
    assert list(found) == ["rope none", "rope linear", "rope ntk", "rope yarn"]
    for name, result in found.items():  # auto: nothing is scaled before it must be
        assert (result["rows"]["16"] == found["rope none"]["rows"]["16"]) and result["rows"]["64"] is not None
        assert name == "rope none" or result["rows"]["64"] != found["rope none"]["rows"]["64"]
    E.main([str(runs / "rope"), *flags(tmp_path)])
    assert read(tmp_path, "length-rope")["runs"]["rope"]["rows"] == found["rope none"]["rows"]
    E.main([*all_runs(runs), *flags(tmp_path, "--window=8")])
    rows = read(tmp_path, "length-window8")["runs"]["alibi"]["rows"]
    assert rows["4"] == pytest.approx(rows["4"]) and abs(rows["256"]["delta"]) < abs(rows["8"]["delta"]) + 0.05
    with pytest.raises(ValueError, match="alibi/best.pt: rope_scaling is an option of pos_scheme=rope"):
        E.main([str(runs / "rope"), str(runs / "alibi"), *flags(tmp_path, "--rope_scaling=yarn")])


def test_offline_wandb_run_holds_the_curve(runs, tmp_path):
    command = [sys.executable, str(Path(E.__file__)), str(runs / "sinusoidal"), *flags(tmp_path, "--seed=3")]
    env = {k: v for k, v in run.os.environ.items() if not k.startswith("WANDB")}
    subprocess.run([*command, "--wandb_mode=offline"], cwd=tmp_path, env=env, check=True, capture_output=True)
    [log] = (tmp_path / "wandb").glob("offline-run-*-sinusoidal-length-*/*.wandb")
    wandb = str(Path(sys.executable).parent / "wandb")
    records = subprocess.run([wandb, "leet", "inspect", "--json", str(log)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)  # fmt: skip
    records = [json.loads(line) for line in records.stdout.splitlines()]
    rows = [r["history"]["item"] for r in records if "history" in r]
    curve = {row["length/context"]: row["length/loss"] for row in rows if "length/context" in row}
    expected = {
        int(n): row["loss"] for n, row in read(tmp_path, "length-sinusoidal")["runs"]["sinusoidal"]["rows"].items()
    }
    assert curve == pytest.approx(expected)
    assert any(r.get("metric", {}).get("step_metric", "") == "length/context" for r in records)
    summary = {k: v for r in records if "summary" in r for k, v in r["summary"].get("update", {}).items()}
    assert {k for k in summary if k.startswith("delta_")} == {f"delta_{n}x" for n in (2, 4, 8, 16)}, records[-3:]


@pytest.mark.parametrize(
    "more, message",
    [
        (["{root}/no_such"], "there is no checkpoint .*no_such"),
        (["{root}"], "there is no checkpoint"),
        (["--lengths=a"], "lengths='a' must be whole numbers"),
        (["--block_tokens=2"], "the shortest length, 4, must be at least four times block_tokens=2"),
        (["--lengths=16,4096"], "too short for|text has .* lower --blocks or --lengths"),
        (["--lengths=16,24,64", "--protocol=nonoverlapping"], "must all divide the longest"),
        (["--protocol=slide"], "protocol='slide' is not one of: fixed, sliding, nonoverlapping, position, context"),
        (["--lengths=16,8"], "must ascend"),
        (["--threshold=-1"], "threshold=-1.0 must be at least 0"),
        (["--dataset=no_such"], "dataset 'no_such' is not prepared"),
        (["--blocks=1"], "blocks=1 is too few"),
    ],
)
def test_bad_input_is_named(runs, tmp_path, more, message):
    more = [m.format(root=runs) for m in more]
    with pytest.raises(ValueError, match=message):
        E.main([str(runs / "rope"), *flags(tmp_path), *more])
    assert not (tmp_path / "results").exists()


def test_no_run_and_runs_on_different_text_are_refused(runs, tmp_path, dataset, shakespeare):
    with pytest.raises(ValueError, match="which runs"):
        E.main([])
    from data.prepare import folder_main

    folder_main([str(shakespeare), f"--name={tmp_path}/other"])
    train.main([f"--dataset={tmp_path}/other", f"--out_dir={tmp_path}/r", "--n_layer=1", "--n_head=1", "--n_embd=8",
                "--block_size=16", "--max_iters=1", "--device=cpu"])  # fmt: skip
    with pytest.raises(ValueError, match="trained on different text"):
        E.main([str(runs / "rope"), f"{tmp_path}/r", *flags(tmp_path)])
    E.main([str(runs / "rope"), f"{tmp_path}/r", *flags(tmp_path, "--allow_mixed")])
    texts = read(tmp_path)["datasets"]
    assert list(texts) == [str(dataset), f"{tmp_path}/other"] and len({t["hash"] for t in texts.values()}) == 2
    with pytest.raises(ValueError, match="another tokenizer than that of dataset"):
        E.main([str(runs / "rope"), *flags(tmp_path), f"--dataset={tmp_path}/other"])


def test_every_length_is_scaled_from_the_checkpoint_and_not_from_the_length_before(runs, tmp_path, monkeypatch):
    factors, original = [], E.block_losses

    def noting(cfg, model, *rest):
        factors.append(model.config.rope_factor)
        return original(cfg, model, *rest)

    monkeypatch.setattr(E, "block_losses", noting)
    more = ["--protocol=context", "--rope_scaling=yarn", "--lengths=16,32,64"]
    E.main([str(runs / "rope"), *flags(tmp_path, *more)])
    assert factors == [1, 2, 4, 2, 4, 2, 4]  # as it is, foreign, shuffled
