"""One slot's life: from its changes to what is delivered, whatever the two ends are.

Both ends are known only as the protocols in :mod:`.ends`.
"""
