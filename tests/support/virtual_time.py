"""An event loop whose time is not the world's: sleeping takes no time, and what happens is the same each time."""

import asyncio
import functools
import inspect
import selectors
from contextlib import contextmanager


class _Selector(selectors.DefaultSelector):
    """Instead of waiting, it moves the loop's clock."""

    now = 1000.0
    turns = 0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("everything waits for something that never comes")
        if not ready:
            self.now += max(0.0, timeout)
        # A loop calls timers a nanosecond early: one that sets itself again for the same time would never end.
        self.turns = 0 if timeout else self.turns + 1
        if self.turns > 1_000:
            self.now += 1e-9
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self):
        return self._virtual.now


@contextmanager
def virtual_time():
    """A runner for coroutines: `with virtual_time() as run: run(main())`."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner.run


def in_virtual_time(test):
    """The coroutine function of a test, run in virtual time."""

    @functools.wraps(test)
    def run(*arguments, **named):
        with virtual_time() as run:
            run(test(*arguments, **named))

    return run


def all_in_virtual_time(module):
    """Every test of a module that is a coroutine function; `module` is its `globals()`, called for in its last line."""
    for name, test in list(module.items()):
        if name.startswith("test_") and inspect.iscoroutinefunction(test):
            module[name] = in_virtual_time(test)


class Clock:
    """Seconds that only a test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
