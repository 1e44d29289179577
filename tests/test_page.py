"""The page computes what the models compute, in a browser (apt-get install chromium)."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ROOT

from benchmark.tables import deltas
from eval_length import score
from model import GPT, GPTConfig
from tools.page import results

PAGE = ROOT / "docs/page"
MODELS = ("rope", "alibi", "fox5", "learnable", "none", "rope_nope")


def content(name):
    """What tools/page.py wrote into a file."""
    call = (PAGE / f"data/{name}.js").read_text()
    return json.loads(call[call.index(",") + 1 : call.rindex(")")])


def model_of(name, window=0):
    """The model with the rounded weights, and its tokens for the first passage."""
    file = content(name)
    packed = base64.b64decode(file["weights"])
    weights = {}
    start = 0
    for key, shape in file["shapes"].items():
        size = int(np.prod(shape))
        integers = np.frombuffer(packed, np.int8, size, start).reshape(-1, shape[-1])
        scales = np.frombuffer(packed, np.float32, len(integers), start + size)
        start += size + scales.nbytes
        weights[key] = torch.from_numpy(integers * scales[:, None]).view(shape)
    assert start == len(packed)
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    config = replace(GPTConfig(**file["config"]), window=window)
    text = content("passages")[0]
    tokens = torch.tensor([[file["chars"].index(char) for char in text]])
    return GPT.from_weights(config, weights).eval(), tokens


def messages(pipe):
    """What comes through a pipe, in messages that end with a 0 byte."""
    rest = b""
    while part := os.read(pipe, 2**20):
        *whole, rest = (rest + part).split(b"\0")
        yield from map(json.loads, whole)


class Browser:
    """Chromium without a window. It takes questions from a pipe and writes answers into another."""

    def __init__(self, folder):
        questions, self.questions = os.pipe()
        replies, answers = os.pipe()
        flags = f"--headless=new --no-sandbox --disable-gpu --lang=en --remote-debugging-pipe --user-data-dir={folder}"
        command = ["bash", "-c", f"exec chromium {flags} 3<&{questions} 4>&{answers}"]
        self.process = subprocess.Popen(command, pass_fds=(questions, answers), stderr=subprocess.DEVNULL)
        os.close(questions)
        os.close(answers)
        self.messages = messages(replies)
        self.numbers = itertools.count()
        self.errors = []
        self.session = {}
        target = self.call("Target.createTarget", url=f"{PAGE.as_uri()}/index.html?lang=en")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        self.call("Runtime.enable")  # reports earlier errors as well
        self.call("Log.enable")

    def call(self, method, **params):
        number = next(self.numbers)
        question = {"id": number, "method": method, "params": params, **self.session}
        os.write(self.questions, json.dumps(question).encode() + b"\0")
        for message in self.messages:
            if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.errors.append(message)
            if message.get("id") == number:
                return message["result"]
        pytest.fail("chromium has ended")

    def js(self, code):
        """The value of an expression."""
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, code):
        """Waits until an expression is true."""
        start = time.monotonic()
        while not self.js(code):
            assert time.monotonic() - start < 180, code
            time.sleep(0.05)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if not shutil.which("chromium"):
        pytest.skip("needs chromium")
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    browser.wait(
        "document.URL.startsWith('file:') && document.readyState === 'complete'"
    )  # about:blank is complete, too
    browser.wait("panels.length === 2 && panels.every(panel => panel.limit)")
    yield browser
    browser.call("Browser.close")
    browser.process.wait()
    assert not browser.errors


LOGITS = """async (name, window, n) => {
  await loadData(name);
  const model = new (lengthwise().Model)(data[name]);
  const ids = model.encode(data.passages[0].slice(0, n));
  const cache = model.cache(n, window);
  const prefill = [...model.feed(ids, model.cache(n, window))].flat();
  const steps = ids.map(id => model.block([id], cache)[0]);
  return [prefill, steps].map(rows => rows.map(row => Array.from(row)));
}"""


@pytest.mark.parametrize("name, window", [*((name, 0) for name in MODELS), ("rope", 64)])
def test_logits_are_the_models_with_prefill_and_with_a_cache(page, name, window):
    model, tokens = model_of(name, window)
    n = model.config.max_positions or 1024
    with torch.no_grad():
        expected = model.double().lm_head(model.hidden(tokens[:, :n]))[0].numpy()
    for logits in np.array(page.js(f"({LOGITS})({name!r}, {window}, {n})")):  # those at 64 do not depend on later ones
        assert np.abs(logits - expected).max() < 1e-5


def test_the_slider_scores_the_same_characters_as_eval_length(page):
    page.js("location.hash = 'read'")
    for place in (12, 3, 12):  # also in the middle of a reading
        page.js(f"$('context').value = {place}; $('context').oninput()")
    page.wait("panels.every(panel => LENGTHS.every(n => isRead(panel, n)))")
    assert page.js("$('length').textContent") == "2,048"
    for name in ("rope", "fox5"):
        model, tokens = model_of(name)
        for n in (32, 64, 128, 256, 512, 1024, 2048):
            losses, _ = score(model, tokens[:, -n - 1 :], 8, torch.device("cpu"), torch.float32)
            read = page.js(f"readings['{name},0,0,{n}'].slice(-8)")
            assert np.abs(losses[0] - read).max() < 1e-3


def test_a_text_streams_and_a_wrong_prompt_gets_one_line(page):
    page.js("location.hash = 'write'; $('prompt').value = 'def café'")
    page.wait("view === 'write' && $('mistake').textContent")
    assert page.js("$('mistake').textContent") == "The models do not know the character é"
    page.js("$('prompt').value = 'def '; $('go').click()")
    page.wait("panels.every(panel => panel.text.textContent.length > 200)")
    text = page.js("panels[1].text.textContent")
    assert text.startswith("def ")
    assert text.index("128: training texts ended here") == 128
    assert not page.js("$('mistake').textContent")


def test_what_alibi_adds_to_the_scores_and_where_a_head_attends(page):
    page.js("location.hash = 'see'; compare('none alibi')")
    page.wait("view === 'see' && panels.every(panel => panel.seen)")
    distance = np.arange(255, -1, -1)
    none, alibi = np.array(page.js("panels.map(panel => Array.from(matrixOf(panel.seen.added, 1).slice(-256)))"))
    assert np.abs(none).max() < 1e-4
    assert np.abs(alibi + distance / 16).max() < 1e-4
    attention = page.js("Array.from(matrixOf(panels[1].seen.attention, 1).slice(-256))")
    assert sum(attention) == pytest.approx(1, abs=1e-5)


def test_the_page_has_all_kept_results():
    assert content("results") == json.loads(json.dumps(results(), default=str))


def test_results_are_those_of_the_tables_and_rows_can_be_chosen(page):
    page.js("location.hash = 'explore'")
    page.wait("view === 'explore' && $('table').rows.length > 1")
    rows = {row[""].strip("`"): row for row in deltas(".")}
    shown = page.js("[...$('table').rows].slice(1).map(row => [...row.cells].map(cell => cell.textContent))")
    for name, *cells, verdict in shown:
        assert cells == [*map(str, rows[name].values())][1:]
        assert verdict == {"fox5": "flat", "rope": "rises"}.get(name, verdict)
    page.js("$('rows').querySelector('input:checked').click()")
    assert page.js("$('table').rows.length") == len(shown)
    assert page.js("$('chart').querySelectorAll('.mean').length") == len(shown) - 1
    # a model that has just been chosen, and is not loaded, has no curve yet
    assert page.js("data.t5 === undefined && measured({ name: 't5', window: { value: 0 } }).length") == 0
