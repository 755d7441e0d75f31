"""What a session shows in the metrics.

``tests/unit/pipeline/test_session.py`` covers it, with whole sessions.
"""

from pgsluice.metrics import Metrics
from pgsluice.pipeline.ends import Spool
from pgsluice.pipeline.outbox import Outbox
from pgsluice.transactions import Transactions


def show_buffers(metrics: Metrics, outbox: Outbox, transactions: Transactions, spool: Spool) -> None:
    """Show what is not delivered yet, and what waits for its commit."""
    metrics.buffered_bytes.set(outbox.size)
    metrics.waiting_transactions.set(transactions.waiting)
    metrics.prepared_transactions.set(len(transactions.prepared))
    metrics.waiting_bytes.labels("memory").set(spool.memory)
    metrics.waiting_bytes.labels("disk").set(spool.spilled)
