"""A batch that grows to what the memory holds: a batch sampler that follows the file of a job with `auto_tuning`.

```
sampler = TunedBatchSampler(DistributedSampler(dataset), batch_size=32)
loader = DataLoader(dataset, batch_sampler=sampler)
```

It writes the batch that it begins with into the file, from where the agent knows what it measures, and looks at the file before
each batch. Elsewhere, without such a file, the batch stays as it is. The file is DLRover's: its `ElasticDataLoader` works, too.
All ranks follow within a few steps of each other, not in the same one: a loss that is averaged over ranks weighs the samples of
those steps slightly differently.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path

from rallypoint.capabilities.tuned_batch import parallel_config
from rallypoint.capabilities.tuned_batch.parallel_config import ParallelConfig
from rallypoint.wire import env

__all__ = ["TunedBatchSampler"]


class TunedBatchSampler:
    """Batches of what `sampler` gives, as many samples at a time as the file says by then.

    With `drop_last` what is left at the end and is no whole batch is dropped. `batch_size` is the present one. Raises
    `ValueError` for a batch that is smaller than 1.
    """

    def __init__(
        self,
        sampler: Iterable[int],
        batch_size: int,
        *,
        drop_last: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size}: not allowed; expected 1 or more")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        path = environ.get(parallel_config.VARIABLE)
        self._path = Path(path) if path else None
        self._seen: tuple[int, int] = (0, 0)
        self._version = 0
        if not self.follow() and self._path is not None and environ.get(env.LOCAL_RANK, "0") == "0":
            _begin(self._path, batch_size)

    def follow(self) -> bool:
        """Take over what the file says; return whether anybody has tuned yet. It is asked before each batch anyhow."""
        if self._path is None:
            return False
        with contextlib.suppress(OSError):
            told = self._path.stat()
            if (told.st_mtime_ns, told.st_ino) != self._seen:
                found = parallel_config.read(self._path)
                if found is not None and found.version > self._version and found.batch > 0:
                    self._version, self.batch_size = found.version, found.batch
                self._seen = (told.st_mtime_ns, told.st_ino)
        return self._version > 0

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while True:
            self.follow()
            size = self.batch_size
            batch = list(itertools.islice(indices, size))
            if not batch or (self.drop_last and len(batch) < size):
                return
            yield batch

    def __len__(self) -> int:
        if not isinstance(self.sampler, Sized):
            raise TypeError(
                f"sampler class {type(self.sampler).__name__} has no __len__, so the number of batches is unknown; "
                "define __len__"
            )
        count, size = len(self.sampler), self.batch_size
        return count // size if self.drop_last else -(-count // size)


def _begin(path: Path, batch: int) -> None:
    """Write down the batch that the script begins with; whoever reads meanwhile finds the old file or the new."""
    known = parallel_config.read(path)
    with contextlib.suppress(OSError):
        parallel_config.write(path, ParallelConfig(version=0 if known is None else known.version, batch=batch))
