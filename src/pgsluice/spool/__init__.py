"""Rows that wait for their commit.

:mod:`.disk_spool` keeps rows in memory up to a limit, and all further rows in files. :mod:`.directory` creates the
directory of these files, and :mod:`.disk` is the thread that reads, writes and removes them.
"""
