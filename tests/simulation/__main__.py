"""``python -m tests.simulation --seed 7`` runs the simulated world with seed 7, and prints its events.

``--seed 7 --seeds 1000`` runs 1000 worlds, with the seeds 7 to 1006.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.world import run

BATCH = 20
PROGRESS = 10_000


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> bool:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0, help="the seed of the world, or of the first world")
    parser.add_argument(
        "--seeds", type=int, default=0, help="the number of worlds; by default, run one and print its events"
    )
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    found = parser.parse_args()
    if not found.seeds:
        violation = run(found.seed, tell)
        tell(violation or "all is well")
        return violation is not None
    return run_many(range(found.seed, found.seed + found.seeds), found.workers)


def run_many(seeds: range, workers: int) -> bool:
    began, failed = time.monotonic(), 0
    with ProcessPoolExecutor(workers) as pool:
        for done, (seed, violation) in enumerate(zip(seeds, pool.map(run, seeds, chunksize=BATCH), strict=True), 1):
            if violation:
                failed += 1
                tell(f"seed {seed}: {violation}")
            if done % PROGRESS == 0:
                tell(f"{done} worlds up to seed {seed}, {failed} of them wrong")
    tell(f"{len(seeds)} worlds, {failed} of them wrong; {len(seeds) / (time.monotonic() - began):.1f} a second")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
