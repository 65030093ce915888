"""Clocks from loads in a pipeline that an adapter of a framework follows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from pfo_fs.errors import ConfigError
from pfo_fs.planner.pipeline import Instruction
from pfo_fs.training.load_clocks import LoadClocks

MicroBatch: TypeAlias = tuple[Sequence[object], Mapping[str, object]]
"""The arguments of a micro-batch's forward."""
MicroBatches: TypeAlias = Callable[[], Iterable[MicroBatch]]
StepLoads: TypeAlias = Iterable[object] | None
"""The load of each micro-batch of a step; None if they are not known."""

_NOT_GIVEN: Sequence[StepLoads] = (None,)
_NEVER_CALLED = "nothing calls loads= with this framework; give loads=True, and call give_loads() before each step"


def check_loads(loads: object, orders: Sequence[Sequence[Instruction]]) -> None:
    """Checks that clocks can come from loads, if `loads` is given.

    Raises:
        ConfigError: `loads` is neither True nor a function, or no order of instructions is known.
    """
    if loads is None:
        return
    if loads is not True and not callable(loads):
        raise ConfigError(
            f"loads= is {loads!r}; give a function from the arguments of a micro-batch's forward to its load, or True "
            "and call give_loads() before each step"
        )
    if not orders:
        raise ConfigError(
            "clocks from loads need to know in which order the ranks run their instructions, and this schedule does "
            "not tell"
        )


class LoadSteps:
    """Steps whose clocks come from loads; `PipelineMarks` takes this object in place of an optimizer.

    Args:
        reader: Returns the load of a micro-batch from the arguments of its forward; None: the program gives loads.
    """

    def __init__(self, clocks: LoadClocks, reader: Callable[..., object] | None) -> None:
        self.given = _NOT_GIVEN
        self._clocks, self._reader = clocks, reader

    def read(self, micro_batches: MicroBatches) -> None:
        if self._reader is not None:
            self.given = (self._read(micro_batches, self._reader),)

    def _read(self, micro_batches: MicroBatches, reader: Callable[..., object]) -> StepLoads:
        try:
            inputs = [(arguments, options) for arguments, options in micro_batches() if arguments or options]
            return [reader(*arguments, **options) for arguments, options in inputs] or None
        except Exception as error:  # noqa: BLE001  a step whose load makes no sense has no load
            self._clocks.misread(error)
            return None

    def on_step_begin(self) -> None:
        given, self.given = self.given, _NOT_GIVEN
        if given is _NOT_GIVEN and self._reader is not None:
            self._clocks.misread(ConfigError(_NEVER_CALLED))
        self._clocks.step(given[0], given[1:])

    def on_step_end(self) -> None:
        self._clocks.work_ended()

    def on_instruction_begin(self, name: str, *, stage: int | None = None) -> None:
        """No clock changes in the middle of a step, and none of its instructions is measured."""

    def on_instruction_end(self, name: str) -> None:
        """As `on_instruction_begin`."""

    def simulated_kernels(self) -> None:
        """None: the program itself runs the instructions of a simulated GPU, because only it knows their loads."""
