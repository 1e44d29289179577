"""The table of what is said of schemes: its lines are counted a second way, its numbers are those of the runs."""

import inspect
import io
import json
import shutil
import statistics
import tokenize
from pathlib import Path

import pytest

import claims
import eval_length
import model
import run
import train

HELPERS = {
    "sinusoidal": ["frequencies"],
    "rope": ["frequencies", "rope_frequencies", "precompute_freqs_cis", "apply_rotary_emb"],
    "alibi": ["alibi_slopes"],
    "transformer_xl": ["frequencies"],
}


def logical_lines(obj):
    """Logical lines of an object's source that are not a string alone."""
    lines, line = 0, []
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(obj)).readline):
        if token.type == tokenize.NEWLINE:
            lines += [t.type for t in line] != [tokenize.STRING]
            line = []
        elif token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT):
            line.append(token)
    return lines


@pytest.mark.parametrize("scheme", [s for s in model.SCHEMES if s != "kerple"])
def test_lines_are_those_of_the_class_and_what_it_calls(scheme):
    cls = model.SCHEMES[scheme]
    objects = [cls, *(getattr(model, name) for name in HELPERS.get(scheme, []))]
    expected = sum(map(logical_lines, objects))
    assert abs(claims.lines_of_code(cls) - expected) <= 2  # `else:` is a line, but no statement


def test_the_table_is_of_the_runs(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, scheme, seed in (("alibi", "alibi", 1), ("alibi-2", "alibi", 2), ("learnable", "learnable", 1)):
        train.main([
            f"--dataset={dataset}", f"--pos_scheme={scheme}", f"--out_dir=out/{name}", "--n_layer=1", "--n_head=2",
            "--n_embd=16", "--block_size=16", "--max_iters=6", "--warmup_iters=2", "--log_interval=1", f"--seed={seed}",
            "--device=cpu",
        ])  # fmt: skip
    eval_length.main(["out/alibi", "out/alibi-2", "--block_tokens=1", "--blocks=20", "--device=cpu"])
    (tmp_path / "results" / "bench.json").write_text('{"relative_speed": {"alibi": 0.5}}')
    capsys.readouterr()
    claims.main(["out/alibi", "out/learnable", "out/alibi-2"])
    header, _, alibi, learnable = capsys.readouterr().out.splitlines()
    cells = [dict(zip(header.split("|"), row.split("|"), strict=True)) for row in (alibi, learnable)]
    cells = [{k.strip(): v.strip() for k, v in row.items()} for row in cells]
    rows = [json.loads((tmp_path / "out" / n / "length.json").read_text())["rows"] for n in ("alibi", "alibi-2")]
    losses, deltas = [r["16"]["loss"] for r in rows], [r["256"]["delta"] for r in rows]
    norms = [
        row["train/grad_norm"]
        for n in ("alibi", "alibi-2")
        for row in run.read_metrics(tmp_path / "out" / n)
        if "train/grad_norm" in row and row["step"] >= 2
    ]
    assert cells[0]["loss at 16"] == f"{statistics.mean(losses):.3f} (sd {abs(losses[0] - losses[1]) / 2**0.5:.3f})"
    assert cells[0]["Δ at 256"].startswith(f"{statistics.mean(deltas):+.3f} (sd ")
    assert cells[0]["gradient norm"] == f"{statistics.median(norms):.2f} ({max(norms):.2f})"
    assert (cells[0]["runs"], cells[0]["parameters"], cells[0]["speed"]) == ("2", "0", "0.500")
    assert (cells[1]["runs"], cells[1]["parameters"], cells[1]["loss at 16"]) == ("1", "256", "—")
    claims.main(["out/learnable", "out/alibi", "out/learnable"])  # the one without a measurement first
    assert capsys.readouterr().out.splitlines()[0] == header
    shutil.copytree("out/alibi", "out/copy")
    claims.main(["out/alibi", "out/copy"])
    assert [row.split("|")[4].strip() for row in capsys.readouterr().out.splitlines()[2:]] == ["1", "1"]
    Path("out/copy/length.json").write_text('{"runs": {}}')
    with pytest.raises(ValueError, match="out/copy/length.json is damaged, or of an older version"):
        claims.main(["out/copy"])
    train.main([
        f"--dataset={dataset}", "--n_layer=1", "--n_head=1", "--n_embd=8", "--block_size=8", "--max_iters=1",
        "--out_dir=out/short", "--device=cpu",
    ])  # fmt: skip
    with pytest.raises(ValueError, match="trained at different lengths .8, 16."):
        claims.main(["out/alibi", "out/short"])
    with pytest.raises(ValueError, match="which runs"):
        claims.main([])
