"""Files that are whole or not there, and folders that one process at a time writes into."""

import contextlib
import os
import re
import shutil

try:
    import fcntl
except ImportError:  # Windows: nothing is locked
    fcntl = None


def temporary(path):
    """Where this process writes what will become `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def is_alive(pid):
    """Whether a process runs. On Windows, which has no such question, all do."""
    try:
        if fcntl:
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def sweep(folder):
    """Deletes what processes that are dead left half-written in a folder."""
    for path in folder.glob(".*.tmp"):
        if (found := re.fullmatch(r"\..+\.(\d{1,9})\.tmp", path.name)) and not is_alive(int(found[1])):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path):
    """A file, open for writing bytes, that becomes `path` when the block ends; after an error `path` is as it was, and
    no space is taken. Makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary(path), "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary(path), path)
    finally:
        temporary(path).unlink(missing_ok=True)


def also(f, path):
    """What was written to f becomes `path`, too: a second name for one content where the file system has that."""
    f.flush()
    os.fsync(f.fileno())
    try:
        try:
            os.link(f.name, temporary(path))
        except OSError:
            shutil.copyfile(f.name, temporary(path))
        os.replace(temporary(path), path)
    finally:
        temporary(path).unlink(missing_ok=True)


def write(path, content):
    """Writes all of content, text or bytes, or leaves the file that was there."""
    with replacing(path) as f:
        f.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def making(path):
    """A new folder whose files a command moves to where they belong, or that it renames to `path`; deleted at the end.
    First deletes those that dead processes left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    temporary(path).mkdir()
    try:
        yield temporary(path)
    finally:
        shutil.rmtree(temporary(path), ignore_errors=True)


class Lock:
    """Holds a folder, or a file `name` in it that is there for nothing else, until the block or the process ends. In a
    folder, deletes what dead processes left. ValueError while another process holds it."""

    def __init__(self, folder, name=""):
        self.folder, self.name = folder, name
        if folder.is_file():
            raise ValueError(f"{folder} is a file, not a folder")
        self.acquire()

    def acquire(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.held = os.open(self.folder / self.name, os.O_RDWR | os.O_CREAT if self.name else os.O_RDONLY, 0o644)
        try:
            if fcntl:
                fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.held)
            who = f"another process is writing into {self.folder}"
            raise ValueError(f"{who}: wait until it ends, or stop it") from None
        if not self.name:
            sweep(self.folder)

    def keep(self):
        """Holds the folder of this name where that is another by now: it was renamed or deleted. OSError while another
        process holds it."""
        if not self.folder.exists() or not os.path.samestat(os.stat(self.folder), os.fstat(self.held)):
            os.close(self.held)
            try:
                self.acquire()
            except ValueError as error:
                raise OSError(str(error)) from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.held)
        with contextlib.suppress(OSError):  # it is not empty
            self.folder.rmdir()
