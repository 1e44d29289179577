"""Draws docs/falls_apart.gif, in which a model writes past its training length, as it is and under a window:

python -m benchmark.moving out/rope
"""

import io
import re
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from benchmark.results import ROOT
from run.checkpoint import load_checkpoint
from run.script import script
from sample import SampleConfig, sample

LENGTH = 408  # characters that are written, with the prompt
STEP = 4  # characters a frame
COLUMNS = 48
HEIGHT = 400
PANEL = 415  # the width of a text in pixels
BLACK = "#333333"
PAST = ("#b02a78", "#006d4f")  # of each text, the colour of characters past the training length


def font(name, size):
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts/ttf", name), size)


def written(path, window):
    """What the model writes behind "def "."""
    cfg = SampleConfig(out_dir=path, start="def ", num_samples=1, max_new_tokens=LENGTH - len("def "), window=window)
    (text,) = sample(cfg, io.StringIO())
    return text


def wrapped(text):
    """The text in lines of at most COLUMNS characters."""
    return re.sub(f".{{{COLUMNS}}}(?=.)", r"\g<0>\n", text)


def frame(texts, trained, n):
    """The picture of the first n characters of the texts {title: text}."""
    image = Image.new("RGB", (2 * PANEL, HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    for panel, (title, text) in enumerate(texts.items()):
        left = 12 + PANEL * panel
        draw.text((left, 8), title, font=font("DejaVuSans.ttf", 14), fill="black")
        for end, color in ((n, PAST[panel]), (min(n, trained), BLACK)):  # the first characters are drawn over again
            mono = font("DejaVuSansMono.ttf", 13)
            draw.multiline_text((left, 38), wrapped(text[:end]), font=mono, fill=color)
    note = f"{n} characters are written; in colour: more than the {trained} of training"
    draw.text((12, HEIGHT - 24), note, font=font("DejaVuSans.ttf", 14), fill=BLACK)
    return image


def main(argv):
    (run,) = argv
    trained = load_checkpoint(run).config.block_size
    texts = {
        f"{Path(run).name}, trained on {trained} characters": written(run, 0),
        f"the same model, seeing only the last {trained}": written(run, trained),
    }
    frames = [frame(texts, trained, n) for n in range(STEP, LENGTH + 1, STEP)]
    palette = frames[-1].quantize(16)  # one for all, so that the file holds only what changes
    frames = [image.quantize(palette=palette) for image in frames]
    durations = [90] * (len(frames) - 1) + [4000]  # milliseconds; the last frame stays
    path = ROOT / "docs" / "falls_apart.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    print(path)
    return 0


if __name__ == "__main__":
    script(main)
