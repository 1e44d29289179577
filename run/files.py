"""Files that are either complete or absent, and folders that one process at a time writes into."""

import contextlib
import hashlib
import json
import os
import shutil

from filelock import FileLock, Timeout


def temporary(path):
    """The name under which `path` is written. One fixed name is enough, because the writer holds the folder's Lock."""
    return path.with_name(f".{path.name}.tmp")


@contextlib.contextmanager
def replacing(path):
    """Opens a file for writing bytes that becomes `path` when the block ends. After an error `path` is unchanged and
    the partial file is gone. Creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary(path), "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary(path), path)
    finally:
        temporary(path).unlink(missing_ok=True)


def write(path, content):
    """Writes all of content, text or bytes, or leaves the old file in place."""
    with replacing(path) as f:
        f.write(content.encode() if isinstance(content, str) else content)


def link(path, other):
    """Makes `other` a second name of the file `path`, or a copy if the file system has no hard links."""
    try:
        try:
            os.link(path, temporary(other))
        except OSError:
            shutil.copyfile(path, temporary(other))
        os.replace(temporary(other), other)
    finally:
        temporary(other).unlink(missing_ok=True)  # writing into it later would change `path`


@contextlib.contextmanager
def making(path):
    """A new empty folder, to be renamed to `path` or emptied by the caller; deleted at the end of the block."""
    folder = temporary(path)
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Lock:
    """Holds a folder until the block or the process ends. ValueError while another process holds it; with `wait`, waits
    for that process instead. `partial` are the patterns of files that a killed holder of this lock may have left
    half-written; they are deleted. Different `name`s lock a folder for different purposes."""

    def __init__(self, folder, name=".lock", partial=(), wait=False):
        self.folder, self.path, self.partial, self.wait = folder, folder / name, partial, wait
        if folder.is_file():
            raise ValueError(f"{folder} is a file, not a folder")
        self.acquire()

    def acquire(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.held = FileLock(self.path)
        try:
            self.held.acquire(timeout=0)
        except Timeout:
            if not self.wait:
                who = f"another process is writing into {self.folder}"
                raise ValueError(f"{who}: wait until it ends, or stop it") from None
            print(f"waiting: another process is writing into {self.folder}", flush=True)
            self.held.acquire()
        self.inode = os.stat(self.path)
        for pattern in self.partial:
            for path in self.folder.glob(f".{pattern}.tmp"):
                path.unlink()

    def keep(self):
        """Acquires the lock again if the folder was renamed or deleted. OSError while another process holds it."""
        if not self.path.exists() or not os.path.samestat(os.stat(self.path), self.inode):
            self.held.release()
            try:
                self.acquire()
            except ValueError as error:
                raise OSError(str(error)) from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):  # Windows deletes no open file
            self.path.unlink()
        self.held.release()
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # succeeds only if it is empty


def json_hash(value):
    """sha256 of plain types."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
