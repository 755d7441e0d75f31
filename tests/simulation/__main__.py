"""``python -m tests.simulation --seed 7`` prints what happens in world 7; ``--seeds 1000`` runs the worlds from there."""

import argparse
import sys
import time

from tests.simulation.world import run


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1, help="the world, or the first of them")
    parser.add_argument("--seeds", type=int, default=0, help="how many worlds; without it, one world is told in full")
    found = parser.parse_args()
    if not found.seeds:
        violation = run(found.seed, print)
        print(violation or "all is well")
        return violation is not None
    began = time.process_time()
    failed = 0
    for seed in range(found.seed, found.seed + found.seeds):
        if violation := run(seed):
            failed += 1
            print(f"seed {seed}: {violation}")
    print(f"{found.seeds} worlds, {failed} violations, {found.seeds / (time.process_time() - began):.1f} worlds a second of CPU time")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
