import os
from pathlib import Path

from bench.processes import busy_ticks, cpu_seconds, cpu_ticks, peak_kib, peak_mib

STAT = "4711 (a ) b (c) R 1 4711 4711 0 -1 4194560 1200 0 0 0 250 31 7 8 20 0 9 0 12345 1000 200 18446744073709551615"
STATUS = "Name:\tpython3\nVmPeak:\t  200000 kB\nVmHWM:\t   64000 kB\nVmRSS:\t   60000 kB\nThreads:\t7\n"
MACHINE = "cpu  1000 20 300 5000 60 7 8 90 40 0\ncpu0 500 10 150 2500 30 3 4 45 20 0\nintr 1\n"


def test_cpu_time_includes_user_and_system_time_whatever_the_name_of_the_program() -> None:
    assert cpu_ticks(STAT) == 250 + 31


def test_the_peak_of_memory_is_read() -> None:
    assert peak_kib(STATUS) == 64_000


def test_busy_time_excludes_idle_waiting_and_stolen_time() -> None:
    assert busy_ticks(MACHINE) == (1000 + 20 + 300 + 7 + 8, 90)


def test_the_figures_of_this_process_can_be_read() -> None:
    times = os.times()
    assert 0 <= cpu_seconds(os.getpid()) <= times.user + times.system + 1
    assert 1 < peak_mib(os.getpid()) < 10_000
    assert busy_ticks(Path("/proc/stat").read_text())[0] > 0
