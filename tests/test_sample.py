import pytest
import torch
from conftest import prepare, write_sample

from data.tokenizers import tokenizer_from
from model import GPT, GPTConfig, draw
from run.checkpoint import load_checkpoint


@pytest.fixture(scope="module")
def runs(tmp_path_factory, trained):
    """{scheme: a run whose tokens are pieces of words, and sometimes only parts of a character}."""
    root = tmp_path_factory.mktemp("runs")
    (root / "a.txt").write_text("def f(x):\n    return x + 1\nnaïve 中文 🙂 " * 400, encoding="utf-8")
    name = prepare(root, root / "a.txt", "--tokenizer=bpe:270").name
    return {scheme: trained(scheme, dataset=name, vocab_size=320) for scheme in ("learnable", "rope", "fox")}


@pytest.mark.parametrize("scheme", ["learnable", "rope", "fox"])
def test_samples_continue_a_prompt_from_a_file_past_the_training_length(runs, scheme, capsys, tmp_path):
    prompt = "def é\r\n"
    (tmp_path / "p.txt").write_bytes(prompt.encode("utf-8-sig"))
    texts, printed = write_sample(runs[scheme], start=f"FILE:{tmp_path}/p.txt", num_samples=3, max_new_tokens=40)
    assert len(set(texts)) == 3
    assert all(text.startswith(prompt) for text in texts)
    assert printed == "\n---------------\n".join(texts) + "\n"
    note = capsys.readouterr().err
    assert "training length, 16 tokens" in note
    assert ("only the last 16" in note) == (scheme == "learnable")


@torch.no_grad()
def test_past_max_positions_text_continues_as_in_nanogpt(runs):
    model = load_checkpoint(runs["learnable"]).model("cpu")
    idx = torch.tensor([[5, 9, 60], [7, 7, 1]])
    slow = idx
    for _ in range(30):  # computes everything again, cropped to block_size
        logits, _ = model(slow[:, -16:])
        likeliest = logits[:, -1].argmax(-1, keepdim=True)
        slow = torch.cat((slow, likeliest), dim=1)
    new = torch.stack([*model.generate(idx, 30, temperature=0)], dim=1)
    assert torch.equal(new, slow[:, 3:])


def test_the_seed_and_a_window_are_applied(runs):
    def text(**settings):
        return write_sample(runs["rope"], num_samples=1, max_new_tokens=60, **settings)[0]

    assert text() == text(window=1000)
    assert text() not in (text(seed=4), text(window=3))


def test_ids_that_pad_the_vocabulary_are_never_drawn():
    model = GPT(GPTConfig(8, 64, 1, 2, 8)).eval()
    model.lm_head.weight.data[50:] = 100 * model.lm_head.weight.data[:14].abs()  # would nearly always be the likeliest
    drawn = model.generate(torch.zeros(4, 1, dtype=torch.long), 60, n_vocab=50)
    assert all(ids.max() < 50 for ids in drawn)


def test_a_character_split_across_tokens_is_printed_whole(runs, monkeypatch):
    tokenizer = tokenizer_from(load_checkpoint(runs["rope"]).tokenizer_spec)
    text = "🙂é中"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    monkeypatch.setattr(GPT, "generate", lambda *args, **settings: (torch.tensor([id]) for id in ids))
    texts, printed = write_sample(runs["rope"], start="d", num_samples=1, max_new_tokens=len(ids))
    assert printed == f"d{text}\n"


def test_stop_ends_each_text_where_its_document_ends(runs, monkeypatch):
    tokenizer = tokenizer_from(load_checkpoint(runs["rope"]).tokenizer_spec)
    (a,) = tokenizer.encode("a")
    end = tokenizer.eot
    steps = torch.tensor([[a, a], [end, a], [a, end], [a, a]])  # of two rows
    monkeypatch.setattr(GPT, "generate", lambda *args, **settings: iter(steps))
    texts, _ = write_sample(runs["rope"], start="d", num_samples=2, stop=True)
    assert texts == ["da", "daa"]


SHARES = [0.1, 0.15, 0.25, 0.5]
TWO_LIKELIEST = [0, 0, 1 / 3, 2 / 3]


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, SHARES),
        ({"top_k": 2}, TWO_LIKELIEST),
        ({"top_p": 0.6}, TWO_LIKELIEST),  # the token that crosses 0.6 is kept
        ({"temperature": 0.5}, [0.029, 0.065, 0.181, 0.725]),
        ({"temperature": 1e-38}, [0, 0, 0, 1]),
        ({"temperature": 0}, [0, 0, 0, 1]),
    ],
)
def test_draw_respects_temperature_top_k_and_top_p(settings, expected):
    logits = torch.tensor(SHARES).log().expand(4000, 4).clone()
    ids = draw(logits, generator=torch.Generator().manual_seed(0), **settings)
    shares = ids.flatten().bincount(minlength=4) / 4000
    assert shares.tolist() == pytest.approx(expected, abs=0.03)
