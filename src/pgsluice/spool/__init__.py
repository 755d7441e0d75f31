"""Rows that wait for their commit.

:mod:`.rows` keeps them in memory, then in files. :mod:`.directory` is where the files are, and :mod:`.disk` works with
them, in a thread of its own.
"""
