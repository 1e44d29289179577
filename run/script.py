"""How a command ends: one line for a mistake, the right status for the shell, and time to save after a signal."""

import contextlib
import os
import re
import signal
import sys


def script(main):
    """Exits with main(argv)'s status. A user's mistake, a ValueError or OSError, is one line and status 2, without a
    traceback. After a signal the process dies of it: a shell's loop over runs must see that to end, too."""
    for stream in (sys.stdout, sys.stderr):
        if stream:
            stream.reconfigure(errors="replace")  # what a terminal cannot show is not worth ending for
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        silence_stdout()
        sys.exit(1)
    except (ValueError, OSError) as error:
        echo = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK") != "0"  # each process makes it
        if isinstance(error, OSError) or not echo:
            print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:  # torch has no type of its own for it
        if not isinstance(error, MemoryError) and not re.search("(allocate|out of) memory", str(error)):
            raise
        print(f"error: not enough memory: {' '.join(str(error).split())[:200]}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        signum = interrupt.args[0] if interrupt.args else signal.SIGINT
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def silence_stdout():
    """From here on it goes nowhere: whoever read it is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Stop:
    """A signal that asks the loop to save and end: Ctrl-C, termination, or the terminal's end. A second Ctrl-C ends it
    at once."""

    def __init__(self):
        self.signum = 0
        signals = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        heard = [s for s in signals if signal.getsignal(s) != signal.SIG_IGN]  # nohup makes us deaf to one
        self.old = {s: signal.signal(s, self.ask) for s in heard}

    def ask(self, signum, frame):
        if self.signum and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = self.signum or signum
        with contextlib.suppress(OSError):  # at once, whatever is being computed; the terminal may be gone
            os.write(2, b"\nstopping: the run is saved first (Ctrl-C again ends it at once)\n")

    def restore(self):
        for s, handler in self.old.items():
            signal.signal(s, handler)
