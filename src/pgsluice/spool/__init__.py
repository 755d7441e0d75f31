"""Rows that wait for their commit.

:mod:`.disk_spool` keeps them in memory up to a limit, and beyond it in files. :mod:`.directory` creates the directory
of these files, and :mod:`.disk` is the thread that reads, writes and removes them.
"""
