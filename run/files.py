"""Files that are either complete or absent, and folders that one process at a time writes into."""

import contextlib
import hashlib
import json
import os
import shutil

from filelock import FileLock, Timeout


@contextlib.contextmanager
def replacing(path):
    """Opens a file for writing bytes that becomes `path` when the block ends. After an error, `path` is unchanged and
    the partial file is gone. Creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.tmp")  # a fixed name is enough: the writer holds the folder's lock
    try:
        with open(partial, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write(path, text):
    """Writes all of a text, or leaves the old file in place."""
    with replacing(path) as f:
        f.write(text.encode())


@contextlib.contextmanager
def making(path):
    """A new empty folder, to be renamed to `path` or emptied by the caller; deleted at the end of the block."""
    folder = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(folder, wait=False):
    """Holds a folder until the block or the process ends. OSError if the folder cannot be created, or while another
    process holds it; with `wait`, waits for that process instead."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    lock = FileLock(path, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except Timeout:
        raise OSError(f"another process is writing into {folder}: wait until it ends, or stop it") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()
        with contextlib.suppress(OSError):
            folder.rmdir()  # succeeds only if it is empty


def json_hash(value):
    """sha256 of plain types."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
