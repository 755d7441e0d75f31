"""The compiled modules: the twins of ``rows``, ``kafka.runs`` and ``pgoutput.copy``, in Cython.

:mod:`.speedups` says whether they are used.
"""
