"""Results as text: a table for the terminal. Pure."""

from bench.results import LoadResult

ROLES = (("client", "client"), ("walsender", "walsender"), ("broker", "broker"), ("others", "others"))


def heading() -> str:
    """Return the line above :func:`lines`."""
    return (
        f"{'load':<13} {'contender':<24} {'events/s':>10} {'of drain':>9} {'later':>6} {'MB/s':>7}   "
        f"{'CPU µs per event: client':>24} {'walsender':>10} {'broker':>7} {'others':>7} {'MiB':>6}"
    )


def lines(key: str, result: LoadResult) -> list[str]:
    """Return one line for each contender: median, and what lies between the least and the greatest."""
    return [_line(key, name, result) for name in result.runs]


def _line(key: str, name: str, result: LoadResult) -> str:
    rate = result.rate(name)
    client, walsender, broker, others = (_cell(result.cpu_us(name, role)) for role, _ in ROLES)
    peak = max((run.peak_mib for run in result.runs[name] if run.peak_mib is not None), default=None)
    return (
        f"{key:<13} {name:<24} {rate.median:>10,.0f} {result.ratio(name):>9.2f} {result.later_ratio(name):>6.2f} "
        f"{rate.median * result.bytes_per_row / 1e6:>7.1f}   {client:>24} {walsender:>10} {broker:>7} {others:>7} "
        f"{'' if peak is None else f'{peak:.0f}':>6}   ({rate.least:,.0f} to {rate.greatest:,.0f})"
    )


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
