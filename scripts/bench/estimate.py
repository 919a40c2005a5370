"""Time the estimators: their start, and a million operations with repeats.

  scripts/bench/estimate [--operations 1000000] [--distinct 5000]

CPU seconds, so that neighbours do not count. Start-up is measured in a fresh process, tables cached.
Baseline: one look-up in a dict an operation, which any answer needs.
"""

import argparse
import subprocess
import sys
import time

START = """
import time; started = time.process_time()
from maya.clusters import load
from maya.estimate import Estimator
from maya.trace.types import Collective, Gemm
imported = time.process_time()
reduce = Collective("all_reduce", "bf16", 1 << 24, tuple(range(8)))
Estimator(load("dgx-h100")).estimate([Gemm(4608, 4096, 12288), reduce])
print(time.process_time() - started, imported - started)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--distinct", type=int, default=5_000)
    options = parser.parse_args()
    subprocess.run([sys.executable, "-P", "-c", START], check=True, capture_output=True)  # fills the cache
    started = subprocess.run([sys.executable, "-P", "-c", START], check=True, capture_output=True, text=True)
    total, imports = map(float, started.stdout.split())
    print(f"start-up and first answers: {total:.2f} s, of which imports {imports:.2f} s")

    from maya.clusters import load
    from maya.estimate import Estimator
    from maya.trace.types import Gemm, Kernel, Operator

    name = (
        "at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, std::array<char*, 3ul>>"
    )
    distinct = [
        Gemm(128 + i, 4096, 4096)
        if i % 2
        else Kernel(name, (i, 1, 1), (128, 1, 1), operator=Operator("aten::add", ((i, 512),)))
        for i in range(1, options.distinct + 1)
    ]
    operations = (distinct * (options.operations // len(distinct) + 1))[: options.operations]
    estimator = Estimator(load("dgx-h100"))
    began = time.process_time()
    estimator.estimate(operations)
    taken = time.process_time() - began
    known = {id(operation): 0.0 for operation in distinct}
    began = time.process_time()
    [known[id(operation)] for operation in operations]
    baseline = time.process_time() - began
    print(f"{options.operations:,} operations, {options.distinct:,} distinct: {taken:.2f} s, "
          f"{taken / baseline:.0f} times a dict look-up each ({baseline:.3f} s)")  # fmt: skip


if __name__ == "__main__":
    main()
