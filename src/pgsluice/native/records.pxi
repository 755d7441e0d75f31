# --- records, and the fields that all records of one transaction share

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_alloc)(PyTypeObject*, Py_ssize_t)

    void PyTuple_SET_ITEM(object, Py_ssize_t, object)
    void PyObject_GC_UnTrack(void*)

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030E0000
    #define FORGET_HASH(record) (((PyTupleObject*)(record))->ob_hash = -1)
    #else
    #define FORGET_HASH(record) ((void)(record))
    #endif
    """
    void FORGET_HASH(void*)  # from Python 3.14 on, a tuple stores its hash, and its constructor sets -1


cdef struct Account:
    # The sums over the pending records.
    Py_ssize_t size
    Py_ssize_t events


cdef int64_t take_stamp(stamp) except -1:
    """Write the fields that all records of the transaction share into HEAD and TAIL, and return the next seq."""
    transaction = stamp.transaction
    put_stamp(stamp.epoch, transaction.commit_lsn, transaction.xid, transaction.commit_ts, transaction.origin)
    return stamp.next_seq


cdef int put_stamp(int64_t epoch, int64_t commit_lsn, int64_t xid, int64_t commit_ts, origin) except -1:
    """Write the fields before the seq into HEAD, and those after it into TAIL, as ``Stamp.encode`` writes them."""
    HEAD.clear()
    HEAD.put_long(epoch)
    HEAD.put_long(commit_lsn)
    TAIL.clear()
    TAIL.put_long(xid)
    TAIL.put_long(commit_ts + EPOCH_US)
    if origin is None:
        return TAIL.put_byte(0)
    TAIL.put_byte(2)
    return TAIL.put_object(encode_bytes(origin.encode()))


cdef object new_record(target, op, key, value, timestamp_ms):
    """Return what ``Record(...)`` returns, without the cost of the call."""
    cdef PyTypeObject* record_type = <PyTypeObject*>Record
    cdef object record = record_type.tp_alloc(record_type, 5)
    Py_INCREF(target)
    PyTuple_SET_ITEM(record, 0, target)
    Py_INCREF(op)
    PyTuple_SET_ITEM(record, 1, op)
    Py_INCREF(key)
    PyTuple_SET_ITEM(record, 2, key)
    Py_INCREF(value)
    PyTuple_SET_ITEM(record, 3, value)
    Py_INCREF(timestamp_ms)
    PyTuple_SET_ITEM(record, 4, timestamp_ms)
    FORGET_HASH(<void*>record)
    # The garbage collector visits every tracked tuple again and again, and there can be millions of records. They need
    # not be tracked, because a record cannot be part of a reference cycle.
    PyObject_GC_UnTrack(<void*>record)
    return record
