"""Files that are whole or not there, and folders that one process at a time writes into."""

import contextlib
import os
import shutil

try:
    import fcntl
except ImportError:  # Windows: nothing is locked
    fcntl = None


@contextlib.contextmanager
def replacing(path):
    """A file, open for writing bytes, that becomes `path` when the block ends; after an error `path` is as it was, and
    no space is taken. Makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def also(f, path):
    """What was written to f becomes `path`, too: a second name for one content where the file system has that."""
    f.flush()
    os.fsync(f.fileno())
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            os.link(f.name, temporary)
        except OSError:
            shutil.copyfile(f.name, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write(path, content):
    """Writes all of content, text or bytes, or leaves the file that was there."""
    with replacing(path) as f:
        f.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def lock(folder, name=""):
    """Holds a folder, or a file `name` in it that is there for nothing else, until the block or the process ends; in a
    folder, deletes what a killed process left half-written. ValueError while another process holds it."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder / name, os.O_RDWR | os.O_CREAT if name else os.O_RDONLY, 0o644)
    try:
        try:
            if fcntl:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is writing into {folder}: wait until it ends, or stop it") from None
        for stale in [] if name else [*folder.glob(".*.tmp"), *folder.glob(".writing-*")]:
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
        yield
    finally:
        os.close(held)
        with contextlib.suppress(OSError):  # it is not empty
            folder.rmdir()
