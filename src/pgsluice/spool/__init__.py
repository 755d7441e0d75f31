"""Rows that wait for their commit.

:mod:`.disk_spool` keeps them in memory, and then in files. :mod:`.directory` makes the directory of these files, and
:mod:`.disk` is the thread that works with them.
"""
