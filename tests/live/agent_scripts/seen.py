"""Write down what a script sees of its process: `seen.py FOLDER [stay]`; with `stay` the first start waits for its end."""

import json
import locale
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path

MASK = os.umask(0)
# Before torch adds threads and handlers of its own.
SEEN = {
    "__file__": __file__,
    "__name__": __name__,
    "__spec__": repr(__spec__),
    "__package__": repr(__package__),
    "argv": sys.argv,
    "orig_argv": sys.orig_argv[1:],
    "path": sys.path,
    "flags": repr(sys.flags),
    "cwd": str(Path.cwd()),
    "environment": dict(os.environ),
    "handlers": {s.name: str(signal.getsignal(s)) for s in signal.Signals},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "descriptors": {link.name: str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists()},
    "threads": [thread.name for thread in threading.enumerate()],
    "tasks": len(list(Path("/proc/self/task").iterdir())),
    "umask": MASK,
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")},
    "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False), sys.getfilesystemencoding()],
    "nice": os.nice(0),
    "leads": os.getsid(0) == os.getpid(),
    "method": multiprocessing.get_start_method(allow_none=True),
    "process": [
        multiprocessing.current_process().name,
        multiprocessing.current_process().daemon,
        multiprocessing.parent_process(),
    ],
    "hooks": [sys.excepthook is sys.__excepthook__, sys.getprofile(), sys.gettrace()],
    "streams": [sys.stdout.encoding, sys.stderr.errors, sys.stdin.read()],
    "random": random.random(),
}
os.umask(MASK)

import torch  # noqa: E402

SEEN["torch"] = [torch.get_num_threads(), torch.is_grad_enabled(), str(torch.get_default_dtype())]
SEEN["torch seed"] = torch.initial_seed()
SEEN["seeded"] = [float(torch.rand(1, generator=torch.Generator().manual_seed(3))), random.Random(3).random()]

count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
part = Path(sys.argv[1], f"part-{count}")
part.write_text(json.dumps(SEEN))
part.rename(part.with_name(f"seen-{count}.json"))
while "stay" in sys.argv and count == 0:
    time.sleep(0.1)
