# --- whole transactions, from Begin to Commit

cdef Py_ssize_t ROWS_MAX = 64  # in a transaction with more rows, the cost of Begin and Commit hardly matters
cdef uint64_t BOUND = <uint64_t>1 << 62  # as in transactions


cdef struct Ends:
    # The fields of a transaction's Begin and Commit.
    uint64_t commit_lsn
    uint64_t end_lsn
    int64_t commit_ts
    uint32_t xid


cdef const uint8_t* message_in(list frames, Py_ssize_t at, Py_ssize_t* size) except? NULL:
    """Return the message of a frame and its size, or NULL if the frame has none."""
    if not PyBytes_CheckExact(frames[at]):
        return NULL
    size[0] = PyBytes_GET_SIZE(<bytes>frames[at]) - MESSAGE_AT
    if size[0] < 5:
        return NULL
    return <const uint8_t*>PyBytes_AS_STRING(<bytes>frames[at]) + MESSAGE_AT


cdef Py_ssize_t find_commit(list frames, Py_ssize_t at, uint64_t from_lsn, Ends* ends) except -1:
    """Return the index of the Commit of the transaction that begins at ``at``, or 0 if it has an uncommon form."""
    cdef Py_ssize_t size = 0, begin = at, end = min(len(frames), at + ROWS_MAX + 2)
    cdef const uint8_t* data = message_in(frames, at, &size)
    if data is NULL or size != 21 or data[0] != b"B":
        return 0
    ends.commit_lsn, ends.commit_ts = big_endian_8(data + 1), <int64_t>big_endian_8(data + 9)
    ends.xid = big_endian_4(data + 17)
    if not from_lsn <= ends.commit_lsn < BOUND or not 0 <= ends.commit_ts < <int64_t>BOUND:
        return 0
    for at in range(begin + 1, end):
        data = message_in(frames, at, &size)
        if data is NULL:
            return 0
        if data[0] == b"C":
            if size != 26 or data[1] != 0 or big_endian_8(data + 2) != ends.commit_lsn:
                return 0
            ends.end_lsn = big_endian_8(data + 10)
            return at if ends.commit_lsn < ends.end_lsn < BOUND else 0
        if data[0] != b"I" and data[0] != b"U" and data[0] != b"D":
            return 0
    return 0


cdef Rows known_rows(uint32_t oid, dict relations, dict ready):
    """Return the encoder of a table, or None if it is not ready for the present version of the table."""
    found = ready.get(oid)
    return <Rows?>found if found is not None and (<Rows?>found).relation is relations.get(oid) else None


cdef int add_rows(
    list frames, Py_ssize_t at, Py_ssize_t end, dict relations, dict ready, Ends* ends, timestamp_ms,
    list records, Account* account, Py_ssize_t limit,
) except -1:
    """Add the rows of one transaction. Return FALLBACK if a row is not of the common form, or ``limit`` is reached."""
    cdef Py_ssize_t size = 0, until = held(records, account) + limit
    cdef const uint8_t* data
    cdef int64_t seq = 0
    cdef Rows rows = None
    for at in range(at, end):
        data = message_in(frames, at, &size)
        if rows is None or rows.oid != big_endian_4(data + 1):
            rows = known_rows(big_endian_4(data + 1), relations, ready)
            if rows is None or (rows.encoder is not None and rows._is_expected(ends.commit_lsn)):
                return FALLBACK
        if rows.encoder is not None and (
            rows._encode(data, size, False, &seq, timestamp_ms, records, account) != DONE
            or held(records, account) >= until
        ):
            return FALLBACK
    return DONE


cdef inline Py_ssize_t held(list records, Account* account) noexcept:
    """Return what ``held_bytes`` returns."""
    return account.size + RECORD_BYTES * len(records)


cdef object transaction_of(Ends* ends):
    return Transaction(ends.xid, ends.commit_lsn, ends.commit_ts)


def add_transactions(
    list frames, Py_ssize_t at, dict relations, dict ready, pending,
    *, uint64_t from_lsn, Py_ssize_t room, int64_t epoch, bint commit_timestamps,
):
    """Add the complete transactions from ``frames[at]`` on. Return None if there is none.

    ``rows.add_transactions`` explains the parameters. A transaction is added only if all its rows have the common form,
    so adding it only appends records.
    """
    cdef Py_ssize_t count = len(frames), commit_at, kept, transactions = 0
    cdef uint64_t end_lsn = 0
    cdef list records = pending.records
    cdef object timestamp_ms = 0
    cdef Ends ends, first, last
    cdef Account account, former
    global busy
    account.size, account.events = pending.size, pending.events
    assert not busy, "one run at a time"
    busy = True
    try:
        while at < count:
            commit_at = find_commit(frames, at, from_lsn, &ends)
            if not commit_at:
                break
            kept, former = len(records), account
            put_stamp(epoch, ends.commit_lsn, ends.xid, ends.commit_ts, None)
            if commit_timestamps:
                timestamp_ms = (ends.commit_ts + EPOCH_US) // 1000
            if add_rows(
                frames, at + 1, commit_at, relations, ready, &ends, timestamp_ms, records, &account, pending.limit
            ) != DONE:
                del records[kept:]
                account = former
                break
            at, end_lsn, from_lsn = commit_at + 1, ends.end_lsn, ends.end_lsn
            if len(records) == kept:
                continue
            if not transactions:
                first = ends
            last = ends
            transactions += 1
            if held(records, &account) >= room:
                break
    finally:
        free_large()
        busy = False
    if not end_lsn:
        return None
    pending.size, pending.events = account.size, account.events
    if not transactions:
        return WholeTransactions(at, end_lsn)
    return WholeTransactions(
        at, end_lsn, transactions, transaction_of(&first), transaction_of(&last), last.end_lsn
    )
