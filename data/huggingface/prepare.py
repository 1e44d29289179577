"""Text from the Hugging Face hub, or local parquet, jsonl or txt files, in parallel: needs pip install datasets

  python data/huggingface/prepare.py  # OpenWebText as data/openwebtext, for config/gpt2.py
  python data/huggingface/prepare.py HuggingFaceFW/fineweb-edu --config=sample-10BT
  python data/huggingface/prepare.py ~/pages/*.parquet --column=content --tokenizer=bpe:4096 --name=mine

A document is a row, or a txt file. `datasets` tokenises them and keeps finished chunks in its cache (HF_HOME): after a
run was killed, the same command goes on from there.
"""

import io
import json
import math
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import data
from run.script import script
from data import prepare as P
from run import files

CHUNK = 100_000  # documents that are tokenised, and kept, at a time
# the kinds of local files -> what load_dataset needs to know about them
KINDS = {".parquet": {"path": "parquet"}, ".jsonl": {"path": "json"}, ".txt": {"path": "text", "sample_by": "document"}}


def local_files(source):
    """The files that `source` names, all of one kind; none if it is a name on the hub."""
    named = re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", " ".join(source))  # on the hub
    if named and not Path(source[0]).exists() and Path(source[0]).suffix not in KINDS:
        return []
    files = [f for f in P.find_files(source) if f.suffix in KINDS]
    kinds = sorted({f.suffix for f in files})
    if len(kinds) != 1:
        raise ValueError(f"{' '.join(source)} must be of one kind of {', '.join(KINDS)}; found: {kinds or 'no text'}")
    return files


def load_rows(source, files, config, column):
    """Returns (rows, held): one column of text, and whether each row is for validation. Those are the dataset's own; if
    it has none, 0.05% of its rows, the same that nanoGPT draws; and of a small dataset up to a tenth."""
    try:
        import datasets
    except ImportError:
        raise ValueError("data/huggingface/prepare.py needs one more package: pip install datasets") from None
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the errors below say what went wrong
    what = {"path": source[0]}
    if files:
        what = KINDS[files[0].suffix] | {"data_files": [str(f.resolve()) for f in files]}
    try:
        splits = datasets.load_dataset(**what, name=config)
    except Exception as error:  # of any type: from the network, the hub or a file
        why = " ".join(str(error.__cause__ or error).split())[:300]
        where = "" if files else "; nor is there a file or folder of this name"
        raise ValueError(f"{source[0]} could not be loaded: {why}{where}") from None
    if "train" not in splits:
        raise ValueError(f"{source[0]} has no split 'train', only: {', '.join(splits)}")
    types = {name: getattr(feature, "dtype", "nested") for name, feature in splits["train"].features.items()}
    if types.get(column) not in ("string", "large_string"):
        known = ", ".join(f"{name} ({dtype})" for name, dtype in types.items())
        raise ValueError(f"--column={column!r} is not a column of text of {source[0]}, which has: {known}")
    parts = [splits[name].select_columns(column) for name in ("train", "validation") if name in splits]
    rows, n = datasets.concatenate_datasets(parts), len(parts[0])
    held = np.arange(len(rows)) >= n
    if len(parts) == 1:
        count = max(math.ceil(0.0005 * n), min(100, math.ceil(0.1 * n)))
        held[np.random.default_rng(2357).permutation(n)[:count]] = True
    return rows, held


def kept_tokenizer(path, kind, rows, held):
    """The tokenizer, in a file, since it may have taken long to train on the text."""

    def pieces(split):
        for row, is_val in zip(tqdm(rows, desc=f"reading {split}", unit="doc"), held, strict=True):
            [text] = row.values()
            if text and is_val == (split == "val"):
                yield from P.cut_pieces(io.StringIO(text))

    if not path.is_file():
        files.write(path, json.dumps(P.make_tokenizer(kind, pieces).spec))
    return data.tokenizer_from(data.read_json(path, data.META["tokenizer"]))


def tokenise(text, tokenizer):
    """A document's ids, and its length in UTF-8."""
    text = text or ""  # a row may hold None
    ids = [np.asarray(tokenizer.encode_plain(piece), np.uint32) for piece in P.cut_pieces(io.StringIO(text))]
    return {"ids": np.concatenate([np.empty(0, np.uint32), *ids]), "bytes": len(text.encode())}


def tokenised(rows, tokenizer, num_proc):
    """Yields what `tokenise` makes of every row. Chunks that an earlier call finished come from the cache."""
    for first in range(0, len(rows), CHUNK):
        chunk = rows.select(range(first, min(len(rows), first + CHUNK)))
        try:
            yield from chunk.map(
                tokenise, input_columns=rows.column_names, remove_columns=rows.column_names,
                fn_kwargs={"tokenizer": tokenizer}, num_proc=min(num_proc, len(chunk)), writer_batch_size=50,
                new_fingerprint=files.json_hash([chunk._fingerprint, tokenizer.spec])[:32],
                desc=f"tokenising from document {first:,} of {len(rows):,}",
            ).with_format("numpy")  # fmt: skip
        except Exception as error:  # whatever datasets makes of Ctrl-C, or of a worker that was killed
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            why = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"tokenising stopped ({why}): the same command goes on") from None


def write(folder, rows, held, tokenizer, num_proc):
    """Writes the token files into `folder`. Returns what meta.json says about each split."""
    writers = {split: P.TokenWriter(folder, split, tokenizer) for split in ("train", "val")}
    for is_val, document in zip(held, tokenised(rows, tokenizer, num_proc), strict=True):
        if document["bytes"]:
            writer = writers["val" if is_val else "train"]
            writer.begin_document()
            writer.add(document["ids"], int(document["bytes"]))
    return {split: writer.close() for split, writer in writers.items()}


def main(argv):
    parser = P.Parser(__doc__)
    add = parser.add_argument
    add("source", nargs="*", default=["Skylion007/openwebtext"], help="on the hub (default: OpenWebText), or files")
    add("--config", help="which configuration of a dataset that has several")
    add("--column", default="text", help="the column that holds the text (default: %(default)s)")
    add("--tokenizer", default="gpt2", help="char, gpt2, or bpe:N, trained here (default: %(default)s)")
    add("--name", help="train with --dataset=NAME (default: the last part of the hub's name)")
    add("--num_proc", type=int, default=os.cpu_count(), help="processes (default: one for each core)")
    add("--overwrite", action="store_true", help="replace a dataset of this name")
    args = parser.parse_args(argv)
    P.check_tokenizer(args.tokenizer)
    if args.num_proc < 1:
        raise ValueError(f"--num_proc={args.num_proc} must be at least 1")
    files = local_files(args.source)
    if files and not args.name:
        raise ValueError("text from files needs a name for its dataset: --name=NAME")
    name = args.name or args.source[0].split("/")[-1]
    P.check_name(name)
    folder = data.folder_of(name)
    source = {"text": " ".join(args.source), "config": args.config, "column": args.column, "tokenizer": args.tokenizer}
    if (folder / "meta.json").is_file() and not args.overwrite:
        found = data.load(name).meta["source"]
        if found | source != found:
            raise ValueError(f"{folder} holds another dataset, {found}: choose another --name, or --overwrite")
        print(f"{folder} is prepared already; --overwrite prepares it again")
        return 0

    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # no tracebacks of workers
    rows, held = load_rows(args.source, files, args.config, args.column)
    work = folder / f".parts-{files.json_hash([rows._fingerprint, source])[:8]}"
    (work / "written").mkdir(parents=True, exist_ok=True)
    try:
        tokenizer = kept_tokenizer(work / "tokenizer.json", args.tokenizer, rows, held)
        splits = write(work / "written", rows, held, tokenizer, args.num_proc)
    except KeyboardInterrupt:
        print("\nfinished chunks are kept: the same command goes on", file=sys.stderr)
        raise
    P.publish(folder, work / "written", tokenizer, splits, source)
    for old in folder.glob(".parts-*"):
        shutil.rmtree(old)
    print(f"train on it: python train.py config/rope.py --dataset={name} --out_dir=out/{Path(name).name}")
    return 0


if __name__ == "__main__":
    script(main)
