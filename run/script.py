"""The shell of every command: one line for a mistake, the right exit status, and time to save after a signal."""

import contextlib
import os
import signal
import sys


def script(main):
    """Runs main(argv) and exits with its status. A mistake (ValueError or OSError) and a missing optional package
    print one line, and the status is 2. After a signal the process dies of that signal, so that a shell's loop over
    runs ends as well."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a character that the terminal lacks becomes `?`
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:  # the reader of our output is gone, as with `| head`
        silence_stdout()
        sys.exit(1)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if os.environ.get("RANK", "0") == "0" or isinstance(error, OSError):  # all processes make the same mistake
            hint = f": pip install {error.name}" if isinstance(error, ModuleNotFoundError) else ""
            print(f"error: {error}{hint}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        signum = interrupt.args[0] if interrupt.args else signal.SIGINT
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def silence_stdout():
    """Discards all further output, because its reader is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Stop:
    """Catches the signals that ask training to save and stop: Ctrl-C, termination, a closed terminal. A second Ctrl-C
    stops it immediately."""

    def __init__(self):
        self.signum = 0
        signums = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        caught = [signum for signum in signums if signal.getsignal(signum) != signal.SIG_IGN]  # nohup ignores one
        self.handlers = {signum: signal.signal(signum, self.stop) for signum in caught}  # those from before

    def stop(self, signum, frame):
        if self.signum and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, b"\nstopping: the run is saved first (press Ctrl-C again to stop immediately)\n")

    def restore(self):
        for signum, handler in self.handlers.items():
            signal.signal(signum, handler)
