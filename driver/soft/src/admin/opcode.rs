//! Opcodes of the supported admin commands (NVMe Base 2.0 section 5), and their names.

pub(crate) const DELETE_IO_SQ: u8 = 0x00;
pub(crate) const CREATE_IO_SQ: u8 = 0x01;
pub(crate) const GET_LOG_PAGE: u8 = 0x02;
pub(crate) const DELETE_IO_CQ: u8 = 0x04;
pub(crate) const CREATE_IO_CQ: u8 = 0x05;
pub(crate) const IDENTIFY: u8 = 0x06;
pub(crate) const ABORT: u8 = 0x08;
pub(crate) const SET_FEATURES: u8 = 0x09;
pub(crate) const GET_FEATURES: u8 = 0x0a;
pub(crate) const ASYNC_EVENT_REQUEST: u8 = 0x0c;
pub(crate) const NAMESPACE_MANAGEMENT: u8 = 0x0d;
pub(crate) const NAMESPACE_ATTACHMENT: u8 = 0x15;
pub(crate) const DOORBELL_BUFFER_CONFIG: u8 = 0x7c;

/// All of them, with their names in fault plans.
pub(crate) const NAMES: [(u8, &str); 13] = [
    (DELETE_IO_SQ, "delete-sq"),
    (CREATE_IO_SQ, "create-sq"),
    (GET_LOG_PAGE, "get-log"),
    (DELETE_IO_CQ, "delete-cq"),
    (CREATE_IO_CQ, "create-cq"),
    (IDENTIFY, "identify"),
    (ABORT, "abort"),
    (SET_FEATURES, "set-features"),
    (GET_FEATURES, "get-features"),
    (ASYNC_EVENT_REQUEST, "event-request"),
    (NAMESPACE_MANAGEMENT, "manage-namespace"),
    (NAMESPACE_ATTACHMENT, "attach-namespace"),
    (DOORBELL_BUFFER_CONFIG, "doorbell-buffer"),
];
