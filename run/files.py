"""Files that are either complete or absent, and folders that one process at a time writes into."""

import contextlib
import errno
import hashlib
import json
import os
import shutil

from filelock import FileLock, Timeout


def temporary(path):
    """The name under which `path` is written. One fixed name is enough, because the writer holds the folder's Lock."""
    return path.with_name(f".{path.name}.tmp")


@contextlib.contextmanager
def naming(path):
    """Names the file or folder that a full disk left incomplete: the system's error does not."""
    try:
        yield
    except OSError as error:
        if error.filename or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextlib.contextmanager
def replacing(path):
    """Opens a file for writing bytes that becomes `path` when the block ends. After an error `path` is unchanged and
    the partial file is gone. Creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with naming(path), open(temporary(path), "wb") as f:
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


@contextlib.contextmanager
def making(path):
    """A new empty folder, to be renamed to `path` or emptied by the caller; deleted at the end of the block."""
    folder = temporary(path)
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
    folder.mkdir(parents=True)
    try:
        with naming(path):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Lock:
    """Holds a folder until the block or the process ends. OSError if the folder cannot be created, or while another
    process holds it; with `wait`, waits for that process instead. `partial` are the patterns of files that a killed
    holder of this lock may have left half-written; they are deleted. Different `name`s lock a folder for different
    purposes."""

    def __init__(self, folder, name=".lock", partial=(), wait=False):
        self.folder, self.path, self.partial, self.wait = folder, folder / name, partial, wait
        self.acquire()

    def acquire(self):
        self.held = FileLock(self.path)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.held.acquire(timeout=0)
        except Timeout:
            if not self.wait:
                who = f"another process is writing into {self.folder}"
                raise OSError(f"{who}: wait until it ends, or stop it") from None
            print(f"waiting: another process is writing into {self.folder}", flush=True)
            self.held.acquire()
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            why = getattr(error, "strerror", None) or error
            raise OSError(f"{str(self.folder)!r} cannot be used as a folder: {why}") from None
        self.inode = os.stat(self.path)
        for pattern in self.partial:
            for path in self.folder.glob(f".{pattern}.tmp"):
                path.unlink()

    def keep(self):
        """Acquires the lock again if the folder was renamed or deleted: another run may have started in its place."""
        if not (self.path.exists() and os.path.samestat(os.stat(self.path), self.inode)):
            self.held.release()
            self.acquire()

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
