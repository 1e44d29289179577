"""Damaged files of a dataset: reading one raises a ValueError that names it."""

import shutil

import pytest

import data


@pytest.mark.parametrize("name", ["train.bin", "val_docs.bin", "meta.json"])
def test_a_damaged_file_is_named(name, dataset, tmp_path):
    path = shutil.copytree(dataset, tmp_path / "copy") / name
    content = path.read_bytes()
    damaged = [b"", b"7", b'{"a":' * 5000, content[:-1]]
    for place in range(0, len(content), 1 + len(content) // 10):
        damaged.append(content[:place] + b"\xff" + content[place + 1 :])
    for changed in damaged:
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=name):
            data.load(str(path.parent))
