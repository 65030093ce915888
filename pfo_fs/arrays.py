"""numpy, loaded when it is first used: the clock process, and commands that only print a text, start without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Array", "np"]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:
    Array = Any

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            setattr(self, name, value := getattr(numpy, name))
            return value

    np = _Numpy()
