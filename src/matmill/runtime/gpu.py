"""The CUDA executor: device memory and kernels through the driver's bindings, launches through ctypes.

Importing this file does not load CUDA. :func:`unavailable` calls the driver's library directly, through ctypes: the
bindings are not imported on a machine without a driver.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from matmill.arch import ARCHES, Arch
from matmill.arrays import resolve_stream
from matmill.driver import LIBRARY as DRIVER
from matmill.driver import current_context, launcher
from matmill.driver import load as load_driver
from matmill.errors import ContextLostError, DeviceError, LaunchError, NoGPUError, size
from matmill.jit.compile import Binary
from matmill.launch import HOPPER, STATIC_SHARED, Launch, why_not_shape
from matmill.runtime.launch_frame import Frame, reserved_shared
from matmill.runtime.memory import Allocation
from matmill.tensor_map import encode

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_OLDEST = (7, 5)
#: Launch shapes cached per GPU. Preparing a dropped one again takes some microseconds.
_MOST_PREPARED = 4096

#: (float32, float64) lanes per SM by compute capability, for GPUs that ``arch`` does not list (CUDA programming guide,
#: throughput of native arithmetic instructions).
_LANES = {(7, 5): (64, 2), (8, 0): (64, 32), (9, 0): (128, 64), (10, 0): (128, 64)}
_LANES_OTHERWISE = (128, 2)

#: _LOST: CUresult codes after which the context runs no kernel (CUDA driver API: "must be terminated and relaunched",
#: and a destroyed context). _OVER: what ``cuEventQuery`` returns once work is finished.
_LOST = frozenset({4, 214, 220, 700, 702, 709, 710, *range(714, 720), 721})
_OVER = _LOST | {0}
#: CUDA_ERROR_INVALID_CONTEXT and CUDA_ERROR_INVALID_HANDLE: a launch returns them if the thread has no context, or
#: another one than the function's.
_ELSEWHERE = frozenset({201, 400})


@cache
def unavailable() -> str | None:
    """Return why no GPU can be used, or None if one can. Determined once per process; never raises."""
    try:
        library = load_driver()
    except OSError:
        return f"no NVIDIA driver is installed ({DRIVER} is not found)"
    status = library.cuInit(0)
    if status:
        return f"the NVIDIA driver does not start: {_reason(library, status)}"
    count = ctypes.c_int()
    status = library.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return "the NVIDIA driver sees no GPU" + (f": {_reason(library, status)}" if status else "")
    numbers = []
    for attribute in (_MAJOR, _MINOR):
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
        numbers.append(value.value)
    capability = (numbers[0], numbers[1])
    if capability < _OLDEST:
        return f"GPU 0 has compute capability {capability[0]}.{capability[1]}, and the compiler starts at 7.5"
    if importlib.util.find_spec("cuda.bindings") is None:
        return "the package cuda-bindings is not installed"
    return None


def _reason(driver: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(status, ctypes.byref(text))
    return f"{(text.value or b'unknown error').decode()} (CUresult {status})"


class Prepared:
    """A loaded kernel with the attributes of its launches, ready to launch frames."""

    def __init__(self, gpu: GPU, binary: Binary, launch: Launch) -> None:
        self._gpu = gpu
        self._what = launch
        self._enqueue = gpu.enqueue
        why = why_not_shape(
            launch.grid,
            launch.block,
            launch.dynamic_shared,
            most_threads=gpu.arch.max_threads_per_block,
            most_shared=gpu.arch.shared_per_block,
            static=binary.resources.shared,
        )
        if why is not None:
            raise LaunchError(
                argument=f"launch {launch}",
                got=why,
                wanted=f"a launch that GPU {gpu.index} ({gpu.arch.title}) takes",
                fix="Change the launch's shape.",
            )
        self._function = gpu.function(binary, launch)

    def __call__(self, config: int, parameters: int) -> None:
        """Enqueue one of the ``calls`` of a :class:`~matmill.runtime.launch_frame.Frame` and return without waiting.

        The calling thread may have any context current. Querying it takes half a microsecond, so it is queried only
        after the driver has refused a function of another context.
        """
        status = self._enqueue(config, self._function, parameters, None)
        if status:
            self._enqueue_within(config, parameters, status)
        self._gpu.last = self._what

    def _enqueue_within(self, config: int, parameters: int, status: int) -> None:
        """Retry in the GPU's own context, if ``status`` may mean that another one is current."""
        if status in _ELSEWHERE:
            with self._gpu.within():
                status = self._enqueue(config, self._function, parameters, None)
        if status in _LOST:
            self._gpu.check(status, f"launch {self._what}")
        if status:
            raise LaunchError(
                argument=f"launch {self._what}",
                got=self._gpu.words(status),
                wanted="a launch that the driver accepts",
                fix="An earlier kernel may have failed; compute-sanitizer names the access at fault.",
            )


class _Cell(threading.local):
    """Memory in which the driver stores a thread's current context."""

    def __init__(self) -> None:
        self.value = ctypes.c_void_p()
        self.address = ctypes.addressof(self.value)


class GPU:
    """One NVIDIA GPU. ``GPU.get(index)`` always returns the same object."""

    #: True after a kernel has failed so that the driver refuses everything that follows.
    lost = False

    def __init__(self, index: int) -> None:
        from cuda.bindings import driver  # noqa: PLC0415 — see Prepared

        self.index = index
        self.last: Launch | None = None
        self._driver = driver
        library = load_driver()
        self.enqueue = launcher(library)
        self._current, self._cell = current_context(library), _Cell()
        self._demand(driver.cuInit(0), "cuInit")
        self._device = self._demand(driver.cuDeviceGet(index), "cuDeviceGet")
        self._context = self._demand(driver.cuDevicePrimaryCtxRetain(self._device), "cuDevicePrimaryCtxRetain")
        self._context_address = int(self._context)
        self._kernels: dict[tuple[bytes, str], Any] = {}
        self._prepared: dict[tuple[Binary, Launch], Prepared] = {}
        self._loading = threading.RLock()  # for `_kernels` and `_prepared`: other threads run while a kernel is loaded
        #: What :meth:`keep` holds, by stream; :meth:`tidy` has nothing to do where it is empty.
        self.kept: dict[int, deque[tuple[Any, tuple[object, ...]]]] = {}
        self._captured: list[tuple[object, ...]] = []
        self._keeping = threading.Lock()
        self.arch = self._recognise()

    @staticmethod
    def get(index: int = 0) -> GPU:
        """Return the GPU with that index.

        Raises :class:`~matmill.errors.NoGPUError` if none can be used, :class:`~matmill.errors.DeviceError` if there is
        none with that index.
        """
        reason = unavailable()
        if reason is not None:
            raise no_gpu("GPU", f"device {index}, but {reason}")
        return _get(index)

    @property
    def driver_version(self) -> str:
        """CUDA's version as the driver has it, for instance ``13000``."""
        return str(self.call("cuDriverGetVersion"))

    def empty(self, nbytes: int) -> Allocation:
        """Return plain device memory with arbitrary contents, never managed (unified) memory."""
        return Allocation(self, nbytes)

    def zeros(self, nbytes: int) -> Allocation:
        """Return device memory filled with 0 when the call returns, also while a graph captures a stream."""
        with self.within(), self._relaxed():
            memory = self.empty(nbytes)
            # On a separate stream, because the default stream may depend on the one that is captured.
            stream = self.call("cuStreamCreate", self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
            self.call("cuMemsetD8Async", memory.address, 0, nbytes, stream)
            self.call("cuStreamSynchronize", stream)
            self.call("cuStreamDestroy", stream)
            return memory

    def upload(self, array: np.ndarray[Any, Any], name: str) -> Allocation:
        """Return a packed row-major copy of ``array`` in device memory; ``name`` appears in messages."""
        try:
            allocation = self.empty(array.nbytes)
        except LaunchError as error:
            raise LaunchError(
                argument=name,
                got=f"{size(array.nbytes)} to copy to GPU {self.index}: {error.got}",
                wanted="an operand that fits its free memory",
                fix="Split the product, or free GPU memory first.",
            ) from error
        allocation.write(np.ascontiguousarray(array))
        return allocation

    def prepare(self, binary: Binary, launch: Launch) -> Prepared:
        """Return the kernel of ``binary``, loaded once, with the launch shape of ``launch`` but without arguments."""
        key = (binary, replace(launch, args=(), dynamic_shared=reserved_shared(launch, self.arch)))
        call = self._prepared.get(key)
        if call is None:
            with self._loading:
                call = self._prepared.get(key)
                if call is None:
                    if len(self._prepared) >= _MOST_PREPARED:
                        self._prepared.clear()
                    call = self._prepared[key] = Prepared(self, *key)
        return call

    def frame(self, launches: Sequence[Launch], names: Sequence[str] = ()) -> Frame:
        """Return a frame of launches for this GPU."""
        return Frame(launches, names, self.arch, encode if self.arch.capability >= HOPPER else None)

    def launch(self, binary: Binary, launch: Launch, stream: object = None) -> None:
        """Enqueue ``launch`` on ``stream``, in a form of :func:`~matmill.arrays.resolve_stream`, or the default stream.

        Returns without waiting. Raises :class:`~matmill.errors.LaunchError` with the names of kernel and launch.
        """
        prepared, frame = self.prepare(binary, launch), self.frame((launch,))
        frame.bind((), resolve_stream(stream) or 0)
        self.tidy()
        prepared(*frame.calls[0])

    def synchronize(self) -> None:
        """Wait for all work on this GPU. A kernel's failure is raised here, with the latest launch's name."""
        self.call("cuCtxSynchronize")
        self.tidy()

    def order(self, before: int, after: int) -> None:
        """Make the stream ``after`` wait for the present work of the stream ``before``. The host does not wait."""
        event = self._mark(before)
        self.call("cuStreamWaitEvent", after, event, 0)
        self.call("cuEventDestroy", event)

    def keep(self, owners: tuple[object, ...], stream: int) -> None:
        """Hold ``owners`` until the present work of the stream is done, so that their memory outlives it.

        A later launch, allocation or wait on this GPU releases them (:meth:`tidy`); the host does not wait. While a
        CUDA graph captures the stream, ``owners`` are held for the life of the process: nothing runs yet, and the graph
        may be launched at any time and repeatedly.
        """
        if self.captures(stream):
            self._captured.append(owners)
            return
        event = self._mark(stream)
        with self._keeping:
            self.kept.setdefault(stream, deque()).append((event, owners))

    def captures(self, stream: int) -> bool:
        """Tell whether a CUDA graph captures the stream."""
        return bool(int(self.call("cuStreamIsCapturing", stream)))

    def _mark(self, stream: int) -> Any:
        """Return a new event, which completes after the present work of the stream."""
        event = self.call("cuEventCreate", self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
        self.call("cuEventRecord", event, stream)
        return event

    def tidy(self) -> None:
        """Release the objects held by :meth:`keep` whose streams have finished."""
        if self.kept:
            with self.within():
                self._sweep()

    def _sweep(self) -> None:
        """Run :meth:`tidy` in this GPU's context."""
        if not self._keeping.acquire(blocking=False):
            return  # another thread is doing this
        driver, over = self._driver, []
        with self._relaxed():
            try:
                for stream, marks in list(self.kept.items()):
                    # Events of one stream complete in order, so that the loop ends at the first one that has not.
                    while marks and int(driver.cuEventQuery(marks[0][0])[0]) in _OVER:
                        over.append(marks.popleft())
                        driver.cuEventDestroy(over[-1][0])
                    if not marks:
                        del self.kept[stream]
            finally:
                self._keeping.release()
            over.clear()  # outside the lock, because releasing owners runs their code

    @contextmanager
    def _relaxed(self) -> Iterator[None]:
        """Let this thread query, allocate and free while a graph captures a stream; the context must be current.

        Otherwise these calls would break the capture on any stream of the thread, or of the process in the default mode
        (cuThreadExchangeStreamCaptureMode).
        """
        driver = self._driver
        _, mode = driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        try:
            yield
        finally:
            if mode is not None:  # None after a kernel has failed: then every call returns that error
                driver.cuThreadExchangeStreamCaptureMode(mode)

    def allocate(self, nbytes: int) -> int:
        """Return the address of new device memory."""
        self.tidy()
        try:
            return int(self.call("cuMemAlloc", nbytes))
        except LaunchError as error:
            if "OUT_OF_MEMORY" not in error.got:
                raise
            raise LaunchError(
                argument=f"GPU {self.index}",
                got=f"no {size(nbytes)} of its memory: {error.got}",
                wanted="as much that is free",
                fix="Free some, or compute the result in parts.",
            ) from error

    def free(self, address: int) -> None:
        """Free device memory. After a context is lost this does nothing, so that finalisers stay silent."""
        if self.lost:
            return
        with suppress(ContextLostError):
            self.call("cuMemFree", address)

    def enter(self) -> bool:
        """Make this GPU's context current on the calling thread; return True if :meth:`leave` must undo it."""
        cell = self._cell
        self._current(cell.address)
        if cell.value.value == self._context_address:
            return False
        self._demand(self._driver.cuCtxPushCurrent(self._context), "cuCtxPushCurrent")
        return True

    def leave(self) -> None:
        """Undo :meth:`enter`, so that the array library finds its own current device again."""
        self._driver.cuCtxPopCurrent()

    @contextmanager
    def within(self) -> Iterator[None]:
        """Run the body between :meth:`enter` and :meth:`leave`."""
        entered = self.enter()
        try:
            yield
        finally:
            if entered:
                self.leave()

    def call(self, name: str, *args: object) -> Any:
        """Call a function of the driver in this GPU's context.

        Raises :class:`~matmill.errors.LaunchError` on failure.
        """
        with self.within():
            return self._demand(getattr(self._driver, name)(*args), name)

    def check(self, status: int, name: str) -> None:
        """Raise :class:`~matmill.errors.LaunchError` if ``status``, returned by the function ``name``, is an error.

        For a lost context it is a :class:`~matmill.errors.ContextLostError`, whatever the function.
        """
        if status in _LOST:
            self.lost = True
            raise ContextLostError(
                argument=f"GPU {self.index}",
                got=f"{self.words(status)}, from {name}; the latest launch was {self.last}",
                wanted="a context in which kernels run",
                fix="Restart the process: the driver answers every further call of it so. To find the access at fault, "
                'make the same call with executor="emulator", or run the program under compute-sanitizer.',
            )
        if status:
            raise LaunchError(
                argument=f"GPU {self.index}",
                got=f"{self.words(status)}, from {name}",
                wanted="success",
                fix=f"The latest launch was {self.last}; compute-sanitizer names an access at fault."
                if self.last
                else "Run `matmill doctor`, which checks driver and GPU.",
            )

    def function(self, binary: Binary, launch: Launch) -> int:
        """Return the ``CUfunction`` of the kernel of ``binary`` that ``launch`` names, loaded in this GPU's context.

        It may use as much dynamic shared memory as a block can have.
        """
        with self.within():
            kernel = self._loaded(binary, launch.entry)
        if launch.dynamic_shared + binary.resources.shared > STATIC_SHARED:
            # As much as there is: other launches share the kernel's limit.
            most = self.arch.shared_per_block - binary.resources.shared
            attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.call("cuKernelSetAttribute", attribute, most, kernel, self._device)
        return int(self.call("cuKernelGetFunction", kernel))

    def _loaded(self, binary: Binary, entry: str) -> Any:
        """Return the ``CUkernel`` of an entry point of ``binary``, loaded once, in the current context."""
        # A kernel of several launches has all entry points in one cubin.
        key = (binary.cubin, entry)
        with self._loading:
            if key not in self._kernels:
                self._kernels[key] = self._load(binary, entry)
            return self._kernels[key]

    def _load(self, binary: Binary, entry: str) -> Any:
        """Load the cubin of ``binary``, which stays loaded for the life of the process."""
        driver = self._driver
        status, library = driver.cuLibraryLoadData(binary.cubin, [], [], 0, [], [], 0)
        if not status.value:
            status, kernel = driver.cuLibraryGetKernel(library, entry.encode())
        if status.value in _LOST:
            self.check(status.value, f"loading kernel {binary.kernel}")
        if status.value:
            raise LaunchError(
                argument=f"kernel {binary.kernel}",
                got=f"{self.words(status.value)} when loading its cubin for {binary.target}",
                wanted=f"a cubin that GPU {self.index} ({self.arch.title}, {self.arch.target}) runs",
                fix="Compile for this GPU's target, and update the driver if it is older than the compiler.",
            )
        return kernel

    def _demand(self, answer: tuple[Any, ...], name: str) -> Any:
        status, *values = answer
        self.check(status.value, name)
        return values[0] if values else None

    def words(self, status: int) -> str:
        """Return the driver's name and description of an error, a ``CUresult``."""
        try:
            known = self._driver.CUresult(status)
        except ValueError:  # newer than the bindings
            return f"CUresult {status}"
        _, text = self._driver.cuGetErrorString(known)
        return f"{known.name}: {(text or b'').decode()}"

    def _recognise(self) -> Arch:
        """Return the arch of this GPU: the table's if it has the model, else one from the driver's attributes.

        Some GPUs (those that share the host's memory, and virtual ones) report clocks of 0. The arch then has the
        slowest clock and memory of the table, a cautious guess.
        """

        def ask(name: str) -> int:
            attribute = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(self._demand(self._driver.cuDeviceGetAttribute(attribute, self._device), name))

        raw = self._demand(self._driver.cuDeviceGetName(128, self._device), "cuDeviceGetName")
        title = raw.split(b"\0")[0].decode()
        capability = (ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR"))
        sms, clock = ask("MULTIPROCESSOR_COUNT"), ask("CLOCK_RATE") * 1e3
        # Two transfers per memory clock, on a bus whose width is in bits.
        dram = 2 * ask("MEMORY_CLOCK_RATE") * 1e3 * ask("GLOBAL_MEMORY_BUS_WIDTH") / 8
        plain = re.sub(r"[^a-z0-9]", "", title.lower())
        for known in ARCHES.values():
            if known.name.replace("-", "") in plain and (known.capability, known.sms) == (capability, sms):
                # One model may have several memories (A100 with 40 or 80 GB): if they differ by more than 15%, the
                # driver is right.
                near = not dram or abs(known.dram_bytes_per_s / dram - 1) < 0.15
                return known if near else replace(known, title=title, dram_bytes_per_s=dram)
        clock = clock or min(known.boost_hz for known in ARCHES.values())
        dram = dram or min(known.dram_bytes_per_s for known in ARCHES.values())
        fp32, fp64 = _LANES.get(capability, _LANES_OTHERWISE)
        return Arch(
            name=plain,
            title=title,
            capability=capability,
            sms=sms,
            boost_hz=clock,
            fp32_flops=2.0 * fp32 * sms * clock,
            fp64_flops=2.0 * fp64 * sms * clock,
            dram_bytes_per_s=dram,
            l2_bytes=ask("L2_CACHE_SIZE"),
            shared_per_sm=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            shared_per_block=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            threads_per_sm=ask("MAX_THREADS_PER_MULTIPROCESSOR"),
            blocks_per_sm=ask("MAX_BLOCKS_PER_MULTIPROCESSOR"),
            registers_per_sm=ask("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            max_threads_per_block=ask("MAX_THREADS_PER_BLOCK"),
            shared_reserved=ask("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        )


def no_gpu(argument: str, got: str) -> NoGPUError:
    """Return the error for a call that requires a GPU where none can be used."""
    return NoGPUError(
        argument=argument,
        got=got,
        wanted="a usable NVIDIA GPU",
        fix="Run `matmill doctor`, or use executor='cpu' or executor='emulator', which need none.",
    )


_gpus: dict[int, GPU] = {}
_starting = threading.Lock()


def _get(index: int) -> GPU:
    gpu = _gpus.get(index)
    if gpu is None:
        with _starting:
            gpu = _gpus.get(index)
            if gpu is None:
                gpu = _gpus[index] = _start(index)
    return gpu


def _start(index: int) -> GPU:
    from cuda.bindings import driver  # noqa: PLC0415 — see Prepared

    driver.cuInit(0)
    count = int(driver.cuDeviceGetCount()[1])
    if not 0 <= index < count:
        raise DeviceError(
            argument="device",
            got=f"GPU {index}",
            wanted=f"a number below {count}",
            fix="CUDA_VISIBLE_DEVICES may hide GPUs from this process.",
        )
    return GPU(index)
