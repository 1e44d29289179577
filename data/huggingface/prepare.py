"""Text of the Hugging Face hub, or local parquet, jsonl and txt files, in parallel: needs pip install datasets

  python data/huggingface/prepare.py  # OpenWebText as data/openwebtext, for config/gpt2.py
  python data/huggingface/prepare.py HuggingFaceFW/fineweb-edu --config=sample-10BT
  python data/huggingface/prepare.py ~/pages/*.parquet --column=content --tokenizer=bpe:4096 --name=mine

A document is a row, or a txt file. Documents are tokenised in parts, each written like a small dataset of its own under
data/NAME, and joined at the end. A killed run goes on where it stopped, called again. The parts follow from the text
alone: neither the number of processes nor an interruption changes a byte. Memory holds a document for each process, and
a row group of a parquet file; datasets keeps a copy of the text on disk, in its cache (HF_HOME).
"""

import argparse
import io
import itertools
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import data
from config import script
from data import prepare as P

PART = 5000  # documents at most
KINDS = {  # of local files: what load_dataset reads them with
    ".parquet": {"path": "parquet"},
    ".jsonl": {"path": "json"},
    ".txt": {"path": "text", "sample_by": "document"},
}


def local_files(source):
    """The files that `source` names, all of one kind; none if it is a name on the hub."""
    missing = [path for path in source if not Path(path).exists()]
    if (
        missing
        and len(source) == 1
        and Path(source[0]).suffix not in KINDS
        and re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", source[0])
    ):
        return []
    if missing:
        raise ValueError(f"there is no file or folder {missing[0]}")
    found = {f for path in map(Path, source) for f in (path.rglob("*") if path.is_dir() else [path])}
    files = sorted(f for f in found if f.suffix in KINDS and f.is_file() and f.stat().st_size)
    kinds = sorted({f.suffix for f in files})
    if len(kinds) != 1:
        raise ValueError(f"{' '.join(source)} must be of one kind of {', '.join(KINDS)}; found: {kinds or 'no text'}")
    return files


def load_rows(source, files, config, column):
    """{"train": rows, and "validation" if the dataset has it}: one column, mapped from the files of datasets' cache."""
    try:
        import datasets
        from pyarrow.dataset import ParquetFragmentScanOptions
    except ImportError:
        raise ValueError("data/huggingface/prepare.py needs one more package: pip install datasets") from None
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what goes wrong is told below
    what = KINDS[files[0].suffix] | {"data_files": [str(f.resolve()) for f in files]} if files else {"path": source[0]}
    try:
        builder = datasets.load_dataset_builder(**what, name=config)
        if hasattr(builder.config, "fragment_scan_options"):  # parquet, of which it would read a whole file ahead
            builder.config.fragment_scan_options = ParquetFragmentScanOptions(pre_buffer=False)
        builder.download_and_prepare()
        splits = builder.as_dataset()
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
    return {s: splits[s].select_columns(column) for s in ("train", "validation") if s in splits}


def cut_parts(rows):
    """[(rows, held)]: the parts, with the numbers of their rows that are for validation. A dataset without such a split
    gives 0.05% of its documents, those that nanoGPT draws; a small one up to a tenth."""
    parts = []
    for split in rows:
        n = len(rows[split])
        if split == "validation":
            held = np.arange(n)
        else:
            count = 0 if "validation" in rows else max(math.ceil(0.0005 * n), min(100, math.ceil(0.1 * n)))
            held = np.sort(np.random.default_rng(2357).permutation(n)[:count])
        size = max(1, min(PART, n // 64))
        for first in range(0, n, size):
            last = min(first + size, n)
            a, b = np.searchsorted(held, [first, last])
            parts.append((rows[split].select(range(first, last)), set((held[a:b] - first).tolist())))
    return parts


def documents(rows, held):
    """(split, text) of every row that is not empty."""
    for i, row in enumerate(rows):
        [text] = row.values()
        if text:
            yield "val" if i in held else "train", text


def pieces(parts, split):
    """The text of a split, as a tokenizer is made from it."""
    for part in tqdm(parts, desc=f"reading {split}", unit="part"):
        for own, text in documents(*part):
            if own == split:
                yield from P.cut_pieces(io.StringIO(text))


def write_part(folder, rows, held, tokenizer):
    """Tokenises one part into `folder`, which is there only when all of it is."""
    temporary = folder.with_name(f"{folder.name}-{os.getpid()}")
    temporary.mkdir()
    writers = {split: P.TokenWriter(temporary, split, P.id_type(tokenizer)) for split in ("train", "val")}
    encode = getattr(tokenizer, "encode_plain", tokenizer.encode)
    for split, text in documents(rows, held):
        writers[split].begin_document(None)
        for piece in P.cut_pieces(io.StringIO(text)):
            writers[split].bytes += len(piece.encode())
            writers[split].add(encode(piece))
    splits = {split: writer.close() for split, writer in writers.items()}
    meta = {"vocab_size": tokenizer.n_vocab, "dtype": P.id_type(tokenizer), "splits": splits}
    (temporary / "meta.json").write_text(json.dumps(meta))
    os.rename(temporary, folder)


def end_with_parent():
    """In a worker: it is to end at Ctrl-C without a traceback, and with its parent, however that was killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def write_parts(folders, parts, tokenizer, num_proc):
    """Tokenises the parts that have no folder yet."""
    missing = [(folder, part) for folder, part in zip(folders, parts, strict=True) if not folder.is_dir()]
    total = sum(len(rows) for rows, _ in parts)
    done = total - sum(len(rows) for _, (rows, _) in missing)
    bar = tqdm(total=total, initial=done, desc="tokenising", unit="doc", unit_scale=True)
    with bar, ProcessPoolExecutor(num_proc, initializer=end_with_parent) as pool:
        running = {pool.submit(write_part, folder, *part, tokenizer): len(part[0]) for folder, part in missing}
        try:
            for future in as_completed(running):
                future.result()
                bar.update(running[future])
        except BrokenProcessPool:
            raise ValueError("a process was killed, perhaps for want of memory: the same command goes on") from None
        except KeyboardInterrupt:
            print("\nthe finished parts are kept: the same command goes on", file=sys.stderr)
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def join_parts(folders, joined, tokenizer):
    """Writes the documents of all parts into the folder `joined`, one after another."""
    joined.mkdir()
    splits = {}
    for split in ("train", "val"):
        writer = P.TokenWriter(joined, split, P.id_type(tokenizer))
        for folder in tqdm(folders, desc=f"joining {split}", unit="part"):
            try:
                meta = json.loads((folder / "meta.json").read_text())
                part = data.load_split(folder, split, meta)
            except (ValueError, OSError) as error:  # as after a power failure
                shutil.rmtree(folder)
                raise ValueError(f"{error}; this part is removed, and the same command makes it anew") from None
            for first, last in itertools.pairwise([*part.docs.tolist(), len(part.tokens)]):
                writer.begin_document(tokenizer.eot)
                writer.add(part.tokens[first:last])
            writer.bytes += meta["splits"][split]["bytes"]
        splits[split] = writer.close()
        if not writer.documents:
            raise ValueError(f"the text has too few documents: none is left for {split}")
    return splits


def main(argv):
    parser = P.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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

    rows = load_rows(args.source, files, args.config, args.column)
    source["fingerprint"] = rows["train"]._fingerprint  # changes with the text, so that no parts of two texts are mixed
    parts = cut_parts(rows)
    work = folder / f".parts-{data.spec_hash(source)[:8]}"
    spec = work / "tokenizer.json"
    if not spec.is_file():
        tokenizer = P.make_tokenizer(args.tokenizer, lambda split: pieces(parts, split))
        work.mkdir(parents=True, exist_ok=True)
        (work / "tokenizer").write_text(json.dumps(tokenizer.spec))
        os.replace(work / "tokenizer", spec)
    tokenizer = data.tokenizer_from(json.loads(spec.read_text()))
    for unfinished in (work / "joined", *work.glob("*-*")):
        shutil.rmtree(unfinished, ignore_errors=True)
    folders = [work / f"{i:06}" for i in range(len(parts))]
    write_parts(folders, parts, tokenizer, args.num_proc)
    splits = join_parts(folders, work / "joined", tokenizer)
    P.publish(folder, work / "joined", tokenizer, splits, source)
    for old in folder.glob(".parts-*"):
        shutil.rmtree(old)
    print(f"train on it: python train.py --dataset={name} --out_dir=out/{Path(name).name}")
    return 0


if __name__ == "__main__":
    script(main)
