"""Dense factorisations, and solves with them, as cuSOLVER and cuBLAS do them: steps that wait for one another (columns
of a panel, rounds of Jacobi's method), their matrix-vector half at the memory's rate, the rest at that of products.

FLOPs are those of LAPACK Working Note 41, appendix C, and Golub & Van Loan, "Matrix Computations", 4th ed.; a complex
one is four real ones. What a step takes is from single measurements that others published, named below: no measurement
of our own was at hand.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from maya.clusters import Device
from maya.estimate.memory import bytes_seconds
from maya.estimate.types import Provenance
from maya.trace.types import Lapack

# Seconds of a step. Of QR: torch.linalg.qr of 16 x 4 and of 128 x 32 on an H100 differ by 136 us, which is 28 more
# columns for each of geqrf and orgqr (pytorch#173788); 4,096 columns come out at 24 ms, 32 were seen (FlagGems#5586).
_QR_S = 2.4e-6
# LU of 128 columns: 300 us alone, 480 by a block each, 5,430 for 1,024 matrices (pytorch#73878).
_LU_S = 3.0e-6
# Cholesky: 109, 376 and 1,954 us with 128, 512 and 2,048 columns (pytorch#173515).
_CHOLESKY_S = 0.8e-6
# A row of a triangle: torch.cholesky_solve of one column, two triangles, took 146 us with 128 rows, 250 with 256
# (FlagGems#5011). Blocked reflectors wait as often: an assumption.
_TRIANGLE_S = 0.5e-6
# Of Jacobi's method, a round of rotations: eigh of a hundred columns in 1.83 ms (pytorch#174674); svd, in fp64, of 256
# in 12.2 ms on an A100 (tenferro-rs#1720). gesvd took 23.3 ms there.
_EIGEN_ROUND_S, _SINGULAR_ROUND_S = 1.2e-6, 3.2e-6
_SINGULAR_S = 91e-6
# A column of the tridiagonal form: eight kernels that wait for one another, an assumption. eig took 50 times as long as
# eigh (pytorch#183806).
_TRIDIAGONAL_S = 16e-6
_EIGENVALUES_S = 50 * _TRIDIAGONAL_S
# Least squares by a block a matrix: 6.4 ms with 128 columns (pytorch#54725).
_LEAST_SQUARES_S = 50e-6

_SWEEPS = 15  # cuSOLVER documentation, syevj: "15 sweeps are good enough to converge to machine accuracy"

# Shares of the peak rate. Trailing products are large but narrow: an assumption. Where each block has a matrix of its
# own: 64 Cholesky factorisations of 2,048 columns in 22 ms (pytorch#173515).
_RATE, _BATCHED_RATE = 0.6, 0.15


@dataclass(frozen=True)
class Cost:
    """Of one matrix."""

    flops: float
    step_s: float
    steps: float  # that wait for one another
    streamed: float = 0.0  # elements that products with a vector read


def cost(call: Lapack) -> Cost:
    """What one matrix costs, without regard to its type. Wide matrices cost what tall ones do."""
    n, m, k = float(min(call.m, call.n)), float(max(call.m, call.n)), float(call.k)
    half = n * n * (m - n / 3)  # of a reduction to two diagonals: a product with a vector for each column
    match call.routine:
        case "geqrf":
            return Cost(2 * m * n**2 - 2 * n**3 / 3, _QR_S, n)
        case "orgqr":
            return Cost(4 * call.m * call.n * k - 2 * (call.m + call.n) * k**2 + 4 * k**3 / 3, _QR_S, k)
        case "ormqr":
            return Cost(2 * call.n * k * (2 * call.m - k), _TRIANGLE_S, k)
        case "gels":
            return Cost(2 * m * n**2 - 2 * n**3 / 3 + 4 * m * n * k, _LEAST_SQUARES_S, n)
        case "potrf":
            return Cost(n**3 / 3, _CHOLESKY_S, n)
        case "getrf":
            return Cost(m * n**2 - n**3 / 3, _LU_S, n)
        case "sytrf":
            return Cost(n**3 / 3, _LU_S, n)
        case "trsm":
            return Cost(n**2 * k, _TRIANGLE_S, n)
        case "potrs" | "getrs" | "sytrs":  # two triangles
            return Cost(2 * n**2 * k, _TRIANGLE_S, 2 * n)
        case "syevd":  # tridiagonal form; with vectors Golub & Van Loan, 8.3.3
            return Cost(9 * n**3 if call.vectors else 4 * n**3 / 3, _TRIDIAGONAL_S, n, n**3 / 3)
        case "gesvd":  # Golub & Van Loan, 8.6.3
            flops = 14 * m * n**2 + 8 * n**3 if call.vectors else 4 * m * n**2 - 4 * n**3 / 3
            return Cost(flops, _SINGULAR_S, n, half)
        case "syevj":  # n^2 / 2 rotations a sweep, each of two rows, two columns and two vectors
            return Cost(_SWEEPS * (9 if call.vectors else 6) * n**3, _EIGEN_ROUND_S, _SWEEPS * n)
        case "gesvdj":  # n^2 / 2 rotations a sweep, each of two columns and two vectors, and its angle
            flops = 6 * m * n**2 + (3 * n**3 if call.vectors else 0)
            return Cost(_SWEEPS * flops, _SINGULAR_ROUND_S, _SWEEPS * n)
        case "gesvda":  # the Gram matrix, its eigenvectors, and the left vectors by a product
            return Cost(4 * m * n**2 + _SWEEPS * 9 * n**3, _EIGEN_ROUND_S, _SWEEPS * n)
        case "geev":  # Golub & Van Loan, 7.5.6
            return Cost((25 if call.vectors else 10) * n**3, _EIGENVALUES_S, n, 5 * n**3 / 6)
    raise ValueError(f"no such routine of LAPACK: {call.routine}")


def real_dtype(call: Lapack) -> str:
    """What its arithmetic runs in."""
    return {"complex64": "fp32", "complex128": "fp64"}.get(call.dtype, call.dtype)


def flops(call: Lapack) -> float:
    return (4 if call.dtype.startswith("complex") else 1) * call.batch * cost(call).flops


def estimate_lapack(call: Lapack, device: Device) -> tuple[float, Provenance]:
    steps_s, device_s = _parts(call, device)
    return steps_s + device_s, Provenance.ROOFLINE


def demand(call: Lapack, device: Device) -> float:
    """Share of the device that it takes while it runs alone: in its steps, that of the matrices in flight."""
    steps_s, device_s = _parts(call, device)
    in_flight = min(call.batch / device.multiprocessors, 1.0) if call.batched else 0.0
    return (in_flight * steps_s + device_s) / (steps_s + device_s)


def _parts(call: Lapack, device: Device) -> tuple[float, float]:
    """Seconds of the steps, and of what has the whole device."""
    one = cost(call)
    peak = device.peak_flops.get(real_dtype(call), device.vector_flops)
    item = (2 if call.dtype.startswith("complex") else 1) * (8 if real_dtype(call) == "fp64" else 4)
    turns = max(call.batch / device.multiprocessors, 1.0) if call.batched else call.batch
    streamed_s, _ = bytes_seconds(call.batch * one.streamed * item, device)
    return turns * one.steps * one.step_s, flops(call) / peak / (
        _BATCHED_RATE if call.batched else _RATE
    ) + streamed_s


def note(routines: Set[str]) -> tuple[str, ...]:
    """Says what is assumed of a job's routines; nothing where there were none."""
    if not routines:
        return ()
    return (
        f"factorisations and solves ({', '.join(sorted(routines))}) are timed by their steps, which wait for one "
        "another, after single measurements that others published, none of our own",
    )
