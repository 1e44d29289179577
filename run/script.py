"""The shell of every command: one line for a mistake, the right exit status, and time to save after a signal."""

import os
import signal
import sys


def script(main):
    """Runs main(argv) and exits with its status. A mistake (ValueError or OSError) and a missing optional package
    print one line, and the status is 2. After Ctrl-C the process dies of its signal, so that a shell's loop over runs
    ends as well."""
    try:
        sys.exit(main(sys.argv[1:]))
    except (ValueError, OSError, ModuleNotFoundError) as error:
        hint = f": pip install {error.name}" if isinstance(error, ModuleNotFoundError) else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


class Stop:
    """Catches Ctrl-C and termination, which ask training to save and stop. A second signal stops it immediately."""

    def __init__(self):
        self.asked = False
        signums = (signal.SIGINT, signal.SIGTERM)
        self.handlers = {signum: signal.signal(signum, self.stop) for signum in signums}  # those from before

    def stop(self, signum, frame):
        self.asked = True
        self.restore()
        os.write(2, b"\nstopping: the run is saved first (press Ctrl-C again to stop immediately)\n")

    def restore(self):
        for signum, handler in self.handlers.items():
            signal.signal(signum, handler)
