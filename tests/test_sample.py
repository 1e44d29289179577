import io
from dataclasses import replace

import pytest
import torch
from conftest import write_texts

import sample
from data.prepare import main as prepare_text
from model import GPT, SCHEMES, GPTConfig, draw
from run import checkpoint as checkpoints
from sample import SampleConfig


@pytest.fixture(scope="module")
def runs(tmp_path_factory, trained):
    """{scheme: a run on a BPE whose single tokens may be parts of a character}."""
    root = tmp_path_factory.mktemp("runs")
    for path in write_texts(root / "texts", words=80).iterdir():
        path.write_text(path.read_text() + "naïve 中文 🙂 " * 20, encoding="utf-8")
    prepare_text([str(root / "texts"), "--tokenizer=bpe:270", f"--name={root}/bpe"])
    return {scheme: trained(scheme, dataset=f"{root}/bpe", vocab_size=320) for scheme in SCHEMES}


def write(folder, **settings):
    out = io.StringIO()
    return sample.sample(SampleConfig(out_dir=str(folder), device="cpu", **settings), out), out.getvalue()


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_samples_of_a_prompt_in_a_file_go_past_the_training_length(runs, scheme, capsys, tmp_path):
    (tmp_path / "p.txt").write_text("def f")
    texts, printed = write(runs[scheme], start=f"FILE:{tmp_path}/p.txt", num_samples=3, max_new_tokens=40)
    assert len(texts) == 3 and len(set(texts)) == 3 and all(t.startswith("def f") for t in texts)
    assert printed == "\n---------------\n".join(texts) + "\n"
    note = capsys.readouterr().err
    assert ("positions end: past 16 tokens" if scheme == "learnable" else "past the training length, 16") in note


def test_same_seed_same_text(runs):
    assert write(runs["rope"], seed=3)[0] == write(runs["rope"], seed=3)[0] != write(runs["rope"], seed=4)[0]


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_greedy_with_cache_equals_greedy_without(runs, scheme):
    model = checkpoints.load(runs[scheme]).model(torch.device("cpu"))
    idx = torch.tensor([[5, 9, 60], [7, 7, 1]])
    fast = model.generate(idx, 30, temperature=0, num_samples=2)
    slow, limit = idx, model.config.max_positions or 10**9
    with torch.no_grad():
        for _ in range(30):  # as nanoGPT: everything anew, cropped to what is defined
            slow = torch.cat((slow, model(slow[:, -limit:])[0][:, -1].argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(fast, slow.repeat_interleave(2, 0))


def test_a_window_and_scaling_change_what_is_written(runs):
    plain = dict(num_samples=1, max_new_tokens=60, temperature=0.0)
    assert write(runs["rope"], **plain)[0] == write(runs["rope"], window=1000, **plain)[0]
    checkpoint = checkpoints.load(runs["rope"])
    for factor, expected in (("auto", 4.0), ("2", 2.0)):  # auto: as far as 64 tokens need
        assert checkpoint.under(SampleConfig(rope_scaling="yarn", rope_factor=factor), 64).rope_factor == expected
    assert checkpoint.under(SampleConfig(rope_scaling="none"), 64).rope_factor == 1.0
    assert checkpoint.under(SampleConfig(window=3), 16) == replace(checkpoint.config, window=3)
    with pytest.raises(ValueError, match="rope_factor=4.0 does nothing without rope_scaling"):
        write(runs["rope"], rope_factor="4")


def test_ids_that_only_pad_the_vocabulary_are_never_drawn():
    model = GPT(GPTConfig(8, 64, 1, 2, 8)).eval()
    model.lm_head.weight.data[50:] = 100 * model.lm_head.weight.data[:14].abs()  # would win nearly always
    out = model.generate(torch.zeros(4, 1, dtype=torch.long), 60, n_vocab=50)
    assert out.max() < 50


def test_a_character_split_over_two_tokens_is_never_printed_broken(runs, monkeypatch):
    tokenizer = checkpoints.load(runs["rope"]).tokenizer()
    text = "🙂é中"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    monkeypatch.setattr(GPT, "stream", lambda self, idx, *a: (torch.tensor([i]) for i in ids))
    assert write(runs["rope"], start="d", num_samples=1, max_new_tokens=len(ids))[1] == f"d{text}\n"


def test_draw_keeps_to_top_k_and_top_p():
    g = torch.Generator().manual_seed(0)
    logits = torch.tensor([0.5, 0.25, 0.15, 0.1]).log().flip(0).expand(4000, 4)  # ids 3, 2, 1, 0 by likelihood

    def shares(temperature=1.0, top_k=0, top_p=1.0):
        ids = draw(logits.clone(), temperature, top_k, top_p, g)
        return (torch.bincount(ids.flatten(), minlength=4) / 4000).tolist()

    assert shares() == pytest.approx([0.1, 0.15, 0.25, 0.5], abs=0.03)
    assert shares(top_k=2) == pytest.approx([0, 0, 1 / 3, 2 / 3], abs=0.03)
    assert shares(top_p=0.6) == pytest.approx([0, 0, 1 / 3, 2 / 3], abs=0.03)  # the token that crosses 0.6 is kept
    assert shares(top_p=0.01) == pytest.approx([0, 0, 0, 1])
    assert shares(temperature=0) == pytest.approx([0, 0, 0, 1])
    assert shares(temperature=0.5) == pytest.approx([0.029, 0.065, 0.181, 0.725], abs=0.03)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--start="], "the prompt is empty"),
        (["--start=FILE:no_such"], "the prompt 'FILE:no_such' is not a file of at most 10,000,000 bytes"),
        (["--start=FILE:/dev/zero"], "the prompt 'FILE:/dev/zero' is not a file of at most"),
        (["--start=FILE:/"], "the prompt 'FILE:/' is not a file of at most"),
        (["--start=é"], "the tokenizer lacks 'é'"),
        (["--num_samples=0"], "num_samples=0 must be at least 1"),
        (["--top_p=0"], "top_p=0.0 must lie in"),
        (["--temperature=-1"], "temperature=-1.0 must be at least 0"),
        (["--rope_scaling=yarn"], "alibi/best.pt: rope_scaling is an option of pos_scheme=rope, not of alibi"),
        (["--rope_factor=much"], "rope_factor='much' must be a number, or auto"),
    ],
)
def test_bad_input_is_named(trained, flags, message, refused):
    assert message in refused(sample.main, f"--out_dir={trained('alibi')}", *flags)
