"""Where torch is wrapped so that it tells what a script is doing (`pulse.py`), without a line of the script.

Loaded by the start-up module as `_rallypoint_watching`. Each wrapper calls what it wraps with what it was given and returns
what that returned; it adds stores to memory and nothing else, and is made when the module that it belongs to has been
imported. A module that is there already, in a process that was forked, is wrapped in its place. An exception that passes a
wrapper loses the wrapper's frames (`tracebacks.py`).

Wrapped: a batch of a loader, backward passes, the scaler of gradients, replays of CUDA graphs, `Module.eval`, compilation, what
saves, and torch's collectives. What a version of torch does not have is left alone.
"""

import functools
import sys
import weakref

__all__ = ["MODULES", "OPERATIONS", "prepare", "watch"]

if "_rallypoint_pulse" in sys.modules:
    pulse, hide = sys.modules["_rallypoint_pulse"], sys.modules["_rallypoint_tracebacks"].hide
    peers = sys.modules["_rallypoint_peers"]
else:  # read as a part of the package, not by the start-up module of a worker
    from rallypoint.training.startup import peers, pulse
    from rallypoint.training.startup.tracebacks import hide

#: Collectives, by their number in the pulse, as agent/node/health/collectives.py has them; what waits for nobody is none.
OPERATIONS = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "all_reduce_coalesced",
    "all_gather_coalesced",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "new_group",
    "init_process_group",
    "destroy_process_group",
)


#: Of these, and of two more that wait for nobody, gloo counts a number in the group, and only on the ranks that take part.
_BETWEEN_TWO = frozenset({"send", "recv", "monitored_barrier"})


#: What connects ranks.
_FORMING = frozenset({"new_group", "init_process_group"})


def _put(place, name: str, make, *others: str) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Replace a function of a class or module by what `make` makes of it, also in `others`, which have taken it over."""
    run = getattr(place, name, None)
    if run is None or hasattr(run, "_rallypoint"):
        return
    prepared = getattr(run, "_rallypoint_calls", None)
    if prepared is not None:
        prepared[0] = make(prepared[0])
        run._rallypoint = True  # noqa: SLF001
        return
    wrapped = functools.wraps(run)(make(run))
    wrapped._rallypoint = True  # type: ignore[attr-defined]  # noqa: SLF001
    setattr(place, name, wrapped)
    for other in others:
        module = sys.modules.get(other)
        if getattr(module, name, None) is run:
            setattr(module, name, wrapped)


def _in_phase(phase: int) -> object:
    def make(run):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        def phased(*args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN202
            token = pulse.enter(phase)
            try:
                return run(*args, **kwargs)
            except BaseException as error:
                hide(error)
                raise
            finally:
                pulse.leave(token, phase)

        return phased

    return make


def _then(tell: object) -> object:
    def make(run):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        def done(*args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN202
            try:
                result = run(*args, **kwargs)
            except BaseException as error:
                hide(error)
                raise
            tell()  # type: ignore[operator]
            return result

        return done

    return make


# --- Each module -----------------------------------------------------------------------------------------------------------


def _loader(module) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    timed, data, first = pulse.batch, pulse.DATA, pulse.FIRST_BATCH

    def batches(run):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        def batch(self):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            try:
                return timed(data if self._num_yielded else first, run, self)
            except BaseException as error:
                hide(error)
                raise

        return batch

    iterators = getattr(module, "_BaseDataLoaderIter", None)
    if iterators is not None:
        _put(iterators, "__next__", batches)
    # Where the loader's processes are started, and asked for their first batches.
    _put(module.DataLoader, "__iter__", _in_phase(first))


#: Whether gradients are exchanged during the backward pass, which then waits for other ranks.
_exchanges = False


def _backward(module) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    beat, clock, waits = pulse.beat, pulse.clock, pulse.waits

    def make(run):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        def backward(*args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN202
            began = clock() if _exchanges else 0
            try:
                run(*args, **kwargs)
            except BaseException as error:
                hide(error)
                raise
            if began:
                waits(began, clock())
            beat()

        return backward

    _put(module, "backward", make)


def _parallel(module) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    def exchanges() -> None:
        global _exchanges  # noqa: PLW0603
        _exchanges = True

    _put(module.DistributedDataParallel, "__init__", _then(exchanges))
    _put(module.DistributedDataParallel, "_ddp_init_helper", _keep_group)


def _keep_group(run):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Keep the process group of a DDP object alive in Python until the object's reducer and logger are gone.

    Their C++ destructors run with the GIL held. If one of them drops the last reference to a gloo group, it joins the group's
    threads, and such a thread may wait for the GIL to release the tensors of its last collective: neither ever ends. Where
    Python drops the last reference, torch releases the GIL first. In a process that imports torch.distributed.nn after
    `init_process_group` (DDP's first constructor does) the default arguments there keep the world group by accident; a fork of
    the zygote, and a script that imports torch._dynamo itself, have imported it before.
    """

    def init(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
        try:
            run(self, *args, **kwargs)
        except BaseException as error:
            hide(error)
            raise
        for holder in (self.reducer, self.logger):
            weakref.finalize(holder, _nothing, self.process_group).atexit = False

    return init


def _nothing(*_kept: object) -> None:
    pass


def _scaler(module) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    _put(module.GradScaler, "update", _then(pulse.beat))


def _graphs(module) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    _put(module.CUDAGraph, "replay", _then(pulse.replayed))


def _modules(module) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    evaluates = pulse.evaluates

    def make(run):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        def eval(self):  # type: ignore[no-untyped-def]  # noqa: A001, ANN001, ANN202
            evaluates(self)
            try:
                return run(self)
            except BaseException as error:
                hide(error)
                raise

        return eval

    _put(module.Module, "eval", make)


def _compiles(module) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    compiling: list = []  # type: ignore[type-arg]

    def begins() -> None:
        compiling.append(pulse.enter(pulse.COMPILE))

    def ends() -> None:
        pulse.leave(compiling.pop() if compiling else None, pulse.COMPILE)

    handler = module.CompilationCallbackHandler
    _put(handler, "run_start_callbacks", _then(begins))
    _put(handler, "run_end_callbacks", _then(ends))


def _saves(*names: str, others: tuple = ()) -> object:  # type: ignore[type-arg]
    def watch(module) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        for name in names:
            _put(module, name, _in_phase(pulse.CHECKPOINT), *others)

    return watch


def prepare(module) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Let the collectives be wrapped in a fork of this process, wherever other modules have taken them over by then.

    Call it as soon as their module has been imported.
    """

    def make(run):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        calls = [run]

        def prepared(*args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN202
            return calls[0](*args, **kwargs)

        prepared._rallypoint_calls = calls  # type: ignore[attr-defined]  # noqa: SLF001
        return prepared

    for name in (*OPERATIONS, "isend", "irecv"):
        run = getattr(module, name, None)
        if run is not None:
            setattr(module, name, functools.wraps(run)(make(run)))  # type: ignore[no-untyped-call]


def _collectives(module) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    called, returned, raised, between = pulse.called, pulse.returned, pulse.raised, pulse.between_two

    def numbered(number: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
        two = OPERATIONS[number] in _BETWEEN_TWO

        def make(run):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            if OPERATIONS[number] in _FORMING:
                run = _ours_alone(run)  # type: ignore[no-untyped-call]

            def collective(*args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN202
                if two:
                    between()
                began = called(number)
                try:
                    result = run(*args, **kwargs)
                except BaseException as error:
                    hide(error)
                    raised(began)
                    raise
                returned(began)
                return result

            return collective

        return make

    for number, name in enumerate(OPERATIONS):
        _put(module, name, numbered(number), "torch.distributed")
    for name in ("isend", "irecv"):
        _put(module, name, _then(between), "torch.distributed")


def _ours_alone(run):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Refuse a group in which a process of another user of this machine has taken the place of a rank."""

    def form(*args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN202
        before = peers.connections()
        try:
            result = run(*args, **kwargs)
            peers.check(before)
        except BaseException as error:
            hide(error)
            raise
        return result

    return form


#: What is done once a module has been imported.
MODULES = {
    "torch.utils.data.dataloader": _loader,
    "torch.autograd": _backward,
    "torch.nn.parallel.distributed": _parallel,
    "torch.amp.grad_scaler": _scaler,
    "torch.cuda.graphs": _graphs,
    "torch.nn.modules.module": _modules,
    "torch._dynamo.callback": _compiles,
    "torch.serialization": _saves("save", others=("torch",)),
    "torch.distributed.checkpoint.state_dict_saver": _saves("save", "async_save", others=("torch.distributed.checkpoint",)),
    "safetensors.torch": _saves("save_file", "save_model"),
    "torch.distributed.distributed_c10d": _collectives,
}


def watch(name: str, module: object) -> None:
    """Wrap a module; one that is not as it is known is left as it is."""
    MODULES[name](module)  # type: ignore[operator]
