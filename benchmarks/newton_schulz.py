"""Newton-Schulz in float32, as the trainer has it on a CPU, beside torch's own in bfloat16.

    python benchmarks/newton_schulz.py

Prints for each shape the ratio of the best times, taken in turn in one process with one
thread, and the error of each against float64 in the Frobenius norm.
"""

from __future__ import annotations

import time

import torch

from badput_trainer.optim import NS_COEFFICIENTS, NS_EPSILON, NS_STEPS, newton_schulz

SHAPES = [(64, 64), (256, 256), (768, 256), (256, 1024)]
ROUNDS = 3


def torchs(matrix: torch.Tensor) -> torch.Tensor:
    """What ``torch.optim.Muon`` calls; it is private there."""
    from torch.optim import _muon

    return _muon._zeropower_via_newtonschulz(matrix, NS_COEFFICIENTS, NS_STEPS, NS_EPSILON)  # noqa: SLF001


def main() -> None:
    """Print one line for each shape."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, one thread")
    for shape in SHAPES:
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        exact = newton_schulz(matrix.double())
        best, errors = [], []
        for function in (newton_schulz, torchs):
            errors.append(((function(matrix) - exact).norm() / exact.norm()).item())
            best.append(float("inf"))
        for _ in range(ROUNDS):
            for i, function in enumerate((newton_schulz, torchs)):
                begin = time.perf_counter()
                function(matrix)
                best[i] = min(best[i], time.perf_counter() - begin)
        print(
            f"{shape[0]:>5} x {shape[1]:<5} float32 is {best[1] / best[0]:.1f} times as fast; "
            f"error {errors[0]:.1e}, torch's {errors[1]:.1e}"
        )


if __name__ == "__main__":
    main()
