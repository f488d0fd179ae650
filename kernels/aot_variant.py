"""What a Triton kernel module says of itself, so that `kernels.aot` can compile it without a GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AotVariant:
    """One specialisation of a `@triton.jit` function; a kernel module's `aot_variants()` returns a list of them.

    `signature`: every argument that is not a constexpr → its type ("*fp32", "i32", "fp32"). `constexprs`: the rest.
    Pointers are taken to be divisible by 16 bytes, as torch allocates them; `divisible` names integer arguments
    (strides) that are divisible by 16 too. `expects_mma`: whether the matrix unit must be used.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int
    num_stages: int
    expects_mma: bool
    divisible: tuple[str, ...] = ()
