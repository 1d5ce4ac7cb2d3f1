//! fio's logs.
